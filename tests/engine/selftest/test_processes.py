"""Two processes against one, here over gloo: they agree; a wrong mean is found; a run that hangs is ended."""

import time
from pathlib import Path

import pytest

from eblvm.engine.errors import UserError
from eblvm.engine.selftest import processes
from eblvm.engine.selftest.finding import run

WRONG_MEAN = """
import torch.distributed as dist

class Done:
    def wait(self):
        pass

dist.all_reduce = lambda tensor, *rest, **how: Done()
"""
HANGING = """
import os, time
from pathlib import Path

Path(__file__).with_name(f"{os.getpid()}.pid").touch()
time.sleep(600)
"""


def test_two_processes_agree_with_one() -> None:
    found = list(run(processes.processes("cpu")))
    assert [f for f in found if not f.passed] == []
    assert len(found) == len(processes.RUNS)


def test_gradients_that_are_not_averaged_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "sitecustomize.py").write_text(WRONG_MEAN)  # which every process runs when it starts
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    found = processes.two_against_one(processes.RUNS["grbm bidsm"], "cpu")
    assert found.bound is not None
    assert found.figure > found.bound


def test_a_run_that_hangs_is_ended_with_all_its_processes(tmp_path: Path) -> None:
    fault = tmp_path / "fault.py"
    fault.write_text(HANGING)
    run = (*processes.RUNS["grbm bidsm"], "--with", str(fault))
    with pytest.raises(UserError, match="2 processes took more than 20 s"):
        processes.trained(run, "cpu", 2, tmp_path / "out", 20.0)
    started = [int(path.stem) for path in tmp_path.glob("*.pid")]
    assert len(started) == 2
    time.sleep(0.5)
    assert [pid for pid in started if is_running(pid)] == []


def is_running(pid: int) -> bool:
    """Is there such a process, other than one that only waits to be asked for its code?"""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


def test_a_run_that_fails_says_why() -> None:
    with pytest.raises(UserError, match=r"(?s)ended with code .*got K=-1, expected 0 or more"):
        processes.two_against_one(("checkerboard", "--K", "-1"), "cpu")
