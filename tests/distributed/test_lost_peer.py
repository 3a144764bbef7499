"""A lost or stopped rank, or one with an error: the others end with one line that names it; the checkpoint is kept."""

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from eblvm.engine.errors import UserError
from eblvm.engine.runs import checkpoint
from eblvm.engine.training import distributed
from eblvm.engine.training.peers import PATIENCE, patience_s
from tests.distributed.ranks import on_ranks
from tests.distributed.test_torchrun import OPTIONS, torchrun, wait_for, workers


def finished(process: "subprocess.Popen[str]") -> tuple[str, str]:
    out, error = process.communicate(timeout=200)
    lines = [line for line in error.splitlines() if line.startswith("eblvm: ")]
    assert len(lines) == 1, error
    return out, lines[0]


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
def test_a_lost_rank_is_named(how: int, tmp_path: Path, monkeypatch) -> None:
    """Killed: its connection closes. Stopped: nothing fails, a collective hangs until the watchdog ends it."""
    monkeypatch.setenv(PATIENCE, "6")
    run = tmp_path / "run"
    process = torchrun(run)
    wait_for(run, 10, process)
    victim = workers(process)[1]
    os.kill(victim, how)
    if how == signal.SIGSTOP:
        time.sleep(9)
        os.kill(victim, signal.SIGKILL)  # or torchrun would wait for it
    _, line = finished(process)
    assert line.startswith("eblvm: rank 0: rank 1 ")
    assert "what was saved is kept: give the same command again" in line
    assert checkpoint.newest(run / "checkpoints")[0]["step"] in (10, 20, 30)


def fails_on(rank: int) -> str:
    try:
        with distributed.shared_mistakes():
            if distributed.rank() == rank:
                raise UserError("data.npz does not exist")
    except UserError as error:
        return str(error)
    return "none"


def test_an_error_on_one_rank_is_raised_on_all() -> None:
    assert on_ranks(2, fails_on, 1) == ["rank 1: data.npz does not exist"] * 2
    assert on_ranks(2, fails_on, 0) == ["data.npz does not exist"] * 2
    assert on_ranks(2, fails_on, 5) == ["none", "none"]


def full_disk(folder: str) -> tuple[int, str]:
    """Return exit code and stderr of a run whose first rank cannot save."""
    import contextlib
    import errno
    import io

    from eblvm.engine.cli import main
    from eblvm.engine.runs import checkpoint

    def full(*_: object) -> None:
        raise UserError(f"{folder}/step-00000010.pt cannot be written ({os.strerror(errno.ENOSPC)})")

    checkpoint.save = full
    said = io.StringIO()
    with contextlib.redirect_stderr(said):
        return main([*OPTIONS, "--out", folder]), said.getvalue()


def test_a_full_disk_on_rank_0_ends_both_with_one_line(tmp_path: Path) -> None:
    (code, said), (other_code, other_said) = on_ranks(2, full_disk, str(tmp_path / "run"))
    assert (code, other_code) == (2, 2)
    assert "No space left on device" in said
    assert "eblvm:" not in other_said


@pytest.mark.parametrize("text", ["x", "-1", "0", "nan", "1e99"])
def test_an_invalid_patience_is_refused(text: str, monkeypatch) -> None:
    monkeypatch.setenv(PATIENCE, text)
    with pytest.raises(UserError, match="expected seconds from 3"):
        patience_s()
