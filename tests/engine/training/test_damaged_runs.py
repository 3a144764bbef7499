"""Run folders whose files are damaged, deleted or full: passed over, repaired, or named with what is kept."""

import errno
import json
import math
import os
import shutil
from pathlib import Path

import pytest
import torch

from eblvm.engine.cli import main
from eblvm.engine.runs import checkpoint
from eblvm.engine.runs.folder import CONFIG, TWIN, read_config
from eblvm.engine.training import loop

TRAIN = "train checkerboard --method bidsm --validations 1 --log-every 5 --checkpoint-every 10".split()


@pytest.fixture(scope="module")
def half(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("runs") / "half"
    assert main([*TRAIN, "--steps", "20", "--out", str(out)]) == 0
    return out


@pytest.fixture
def run(half: Path, tmp_path: Path) -> Path:
    return shutil.copytree(half, tmp_path / "run")


@pytest.mark.parametrize("content", [b"", b"{", b"\0" * 300, b"[]", b"\xff\xfe", b"[" * 100_000, b'"x"', None])
def test_a_damaged_config_is_read_from_its_twin(content: bytes | None, run: Path, half: Path, capsys) -> None:
    (run / CONFIG).unlink()
    if content is not None:
        (run / CONFIG).write_bytes(content)
    assert read_config(run) == read_config(half)
    assert f"{TWIN} is used" in capsys.readouterr().err
    assert main([*TRAIN, "--steps", "30", "--out", str(run)]) == 0
    assert (run / CONFIG).read_bytes() == (run / TWIN).read_bytes()  # repaired
    assert checkpoint.steps(run / "checkpoints")[0] == 30


def test_an_edited_config_is_not_damage(run: Path, capsys) -> None:
    config = json.loads((run / CONFIG).read_text())
    (run / CONFIG).write_text(json.dumps(config | {"wibble": 1}))
    assert main(["report", str(run)]) == 2
    assert "has an option 'wibble' that this version does not know" in capsys.readouterr().err


@pytest.mark.parametrize("content", [b"", b"[]", b'{"mean": 3}', b'{"mean": {"a": []}, "deviation": {}}', b"\0" * 9])
def test_a_damaged_evaluation_is_passed_over(content: bytes, run: Path, capsys) -> None:
    (run / "eval.json").write_bytes(content)
    assert main(["report", str(run)]) == 0
    assert "eval.json is damaged" in capsys.readouterr().err
    assert main(["eval", "--compare", str(run), str(run / ".." / "run"), "--plot", str(run / "x.png")]) == 2
    assert "is not an evaluation of this version" in capsys.readouterr().err


def test_a_damaged_chunk_of_samples_is_drawn_again(run: Path, capsys) -> None:
    arguments = ["eval", str(run), "--draw", "5", "--steps", "3"]
    assert main(arguments) == 0
    (piece,) = (run / "drawn").glob("*/piece-*.pt")
    whole = piece.read_bytes()
    for content in (whole[: len(whole) // 2], b"", b"junk"):
        piece.write_bytes(content)
        assert main([*arguments, "--again"]) == 0
        assert "it is made again" in capsys.readouterr().err
        assert torch.load(piece, weights_only=True).shape == (5, 2)


def test_a_folder_deleted_while_it_is_trained(tmp_path: Path, monkeypatch, capsys) -> None:
    out, validate = tmp_path / "run", loop.validation

    def delete(*arguments: object) -> list[float]:
        shutil.rmtree(out.rename(tmp_path / "removed"))  # at once: the checkpoint of step 10 may be on its way
        return validate(*arguments)

    monkeypatch.setattr(loop, "validation", delete)
    assert main([*TRAIN, "--steps", "20", "--out", str(out)]) == 2
    said = capsys.readouterr().err
    assert f"{out} was removed" in said
    assert "give the same command to begin it again" in said
    assert not out.exists()


def test_a_folder_deleted_while_a_checkpoint_is_written(tmp_path: Path, monkeypatch, capsys) -> None:
    out, write = tmp_path / "run", checkpoint.write

    def delete(path: Path, payload: dict) -> None:
        if path.name == "step-00000010.pt":
            shutil.rmtree(out)
        write(path, payload)

    monkeypatch.setattr(checkpoint, "write", delete)
    assert main([*TRAIN, "--steps", "20", "--out", str(out)]) == 2
    assert f"{out} was removed" in capsys.readouterr().err
    assert not out.exists()


def test_a_full_disk_is_named_with_what_is_kept(run: Path, monkeypatch, capsys) -> None:
    replace = os.replace

    def full(source: str, target: str) -> None:
        if "step-00000030.pt" in str(target):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        replace(source, target)

    monkeypatch.setattr(os, "replace", full)
    assert main([*TRAIN, "--steps", "40", "--out", str(run)]) == 2
    said = capsys.readouterr().err
    assert "step-00000030.pt" in said
    assert "No space left on device" in said
    assert "the checkpoint of step 20 is kept" in said
    monkeypatch.undo()
    assert main([*TRAIN, "--steps", "40", "--out", str(run)]) == 0


@pytest.mark.parametrize("command", ["sample --count 4 --steps 2", "report", "eval --draw 4 --steps 2"])
def test_results_are_written_as_a_whole_and_never_through_a_link(command: str, run: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.write_text("mine")
    for name in ("samples.pt", "samples.png", "curves.png", "density.png", "ood-uniform.png"):
        (run / name).symlink_to(outside)
    name, *options = command.split()
    assert main([name, str(run), *options]) == 0
    assert outside.read_text() == "mine"
    assert not list(run.glob(".*.tmp"))


def test_a_run_does_not_end_complete_with_a_meaningless_q(run: Path, capsys) -> None:
    """phi is finite and below every limit, but its logits are not what any posterior has."""
    path = checkpoint.path_of(run / "checkpoints", 20)
    payload = checkpoint.read(path)
    for p in payload["state"]["phi"].values():
        p.fill_(1e6)
    checkpoint.write(path, payload)
    assert main([*TRAIN, "--steps", "21", "--lower-lr", "1e-9", "--out", str(run)]) in (2, 3)
    assert main([*TRAIN, "--steps", "21", "--out", str(run)]) == 3
    assert "q is " in capsys.readouterr().err
    assert checkpoint.steps(run / "checkpoints")[0] == 20


def test_a_complete_run_with_a_broken_state_is_not_called_complete(run: Path, capsys) -> None:
    path = checkpoint.path_of(run / "checkpoints", 20)
    payload = checkpoint.read(path)
    next(iter(payload["state"]["phi"].values())).fill_(math.nan)
    checkpoint.write(path, payload)
    assert main([*TRAIN, "--steps", "20", "--out", str(run)]) == 3
    assert "phi is nan" in capsys.readouterr().err
