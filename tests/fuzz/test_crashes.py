"""A crash or an error at every single system call: checkpoints and logs are completely old or completely new."""

import errno
import itertools
import json
from pathlib import Path

import pytest
import torch

from eblvm.engine.durable import write_atomic
from eblvm.engine.errors import UserError
from eblvm.engine.runs import checkpoint
from eblvm.engine.runs.stats import read_rows
from eblvm.engine.training.log import Log

from .fault_layer import Crash, Faults, failing
from .properties import TALLY

ERRORS = (None, errno.ENOSPC, errno.EIO)  # None: the process is gone
POINTS = 60  # more than any of the operations has calls


def payload(step: int) -> dict:
    return {"step": step, "best": {}, "state": {"w": torch.full((64,), float(step))}}


def ended(faults: Faults, operation) -> str | None:
    """Run an operation under `faults`; return how it failed, or None if it was complete."""
    try:
        with failing(faults):
            operation()
    except Crash:
        TALLY["crash points"] += 1
        return "crash"
    except UserError as error:
        TALLY["crash points"] += 1
        return str(error)
    return None


def points(code: int | None):
    """Yield faults at the first call, the second, ..."""
    return (Faults(at, code) for at in range(POINTS))


@pytest.mark.parametrize("code", ERRORS)
def test_a_file_is_the_old_or_the_new_one(code: int | None, tmp_path: Path) -> None:
    path, old, new = tmp_path / "file", b"old" * 1000, b"new" * 2000
    for faults in points(code):
        path.write_bytes(old)
        how = ended(faults, lambda: write_atomic(path, new))
        assert path.read_bytes() in (old, new)
        if faults.count <= faults.at:
            assert how is None
            assert path.read_bytes() == new
            break
        if code is not None and how is not None:
            assert f"{path} cannot be written" in how
            assert "is kept" in how
        write_atomic(path, new)  # the remains of a crash do no harm
        assert path.read_bytes() == new
        assert [p.name for p in tmp_path.iterdir()] == ["file"]
    else:
        raise AssertionError("no operation was complete")


@pytest.mark.parametrize("keep", [1, 2])
@pytest.mark.parametrize("code", ERRORS)
def test_every_crash_point_of_a_save_leaves_a_checkpoint(code: int | None, keep: int, tmp_path: Path) -> None:
    tried = 0
    for number in itertools.count():
        folder, faults = tmp_path / str(number), Faults(number, code)
        for step in (10, 20):
            checkpoint.save(folder, step, payload(step), keep)
        how = ended(faults, lambda: checkpoint.save(folder, 30, payload(30), keep))  # noqa: B023
        newest, passed_over = checkpoint.newest(folder)
        assert newest is not None
        assert passed_over == []
        assert newest["step"] in (20, 30)
        assert newest["state"]["w"].tolist() == [float(newest["step"])] * 64
        checkpoint.save(folder, 40, payload(40), keep)
        assert checkpoint.newest(folder)[0]["step"] == 40
        assert checkpoint.steps(folder)[0] == 40
        assert len(checkpoint.steps(folder)) == keep
        assert len(list(folder.iterdir())) == 2 * keep  # neither temporary files nor digests alone are left
        if faults.count <= number:
            assert how is None
            assert newest["step"] == 30
            break
        if code is not None and newest["step"] == 20:
            assert "the checkpoint of step 20 is kept" in how
        tried += 1
    assert tried >= 8


@pytest.mark.parametrize("code", ERRORS)
def test_every_crash_point_of_a_log_leaves_its_rows(code: int | None, tmp_path: Path) -> None:
    tried = 0
    for number in itertools.count():
        folder, faults = tmp_path / str(number), Faults(number, code)
        folder.mkdir()
        rows = [{"step": step, "loss": step / 7} for step in (1, 2, 3)]
        (folder / "stats.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))

        def resume(folder: Path = folder) -> None:
            log = Log(folder, 2, 5, "test")
            try:
                for step in (3, 4):
                    log.write(step, {"loss": [float(step)]})
            finally:
                for part in (*log.loggers, log.file):
                    part.close()

        how = ended(faults, resume)
        logged = read_rows(folder / "stats.jsonl")
        assert logged[:2] == rows[:2]
        assert [row["step"] for row in logged] in ([1, 2], [1, 2, 3], [1, 2, 3, 4])
        last = Log(folder, logged[-1]["step"], 9, "test")
        last.write(9, {"loss": [0.0]})
        last.close()
        assert read_rows(folder / "stats.jsonl") == [*logged, {"step": 9, "loss": 0.0}]
        if faults.count <= number:
            assert how is None
            break
        tried += 1
    assert tried >= 6
