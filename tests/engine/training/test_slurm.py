"""A run in a SLURM job: SIGUSR1 or SIGUSR2 saves, `--requeue` asks for the job again, and the same command continues.

`scontrol` is a script that notes its arguments and the checkpoints that it finds."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from eblvm.engine.cli import main
from eblvm.engine.errors import UserError
from eblvm.engine.runs import checkpoint
from eblvm.engine.runs.stats import reproducible
from eblvm.engine.training import slurm
from eblvm.engine.training.loop import train
from tests.engine.training.test_ends import at_step, small
from tests.engine.training.test_loop import assert_bitwise_equal, final_state

RUN = "train checkerboard --method bidsm --N 1 --K 1 --log-every 5 --validations 4 --steps 3000".split()
SLURM = ("SLURM_JOB_ID", "SLURM_ARRAY_JOB_ID", "SLURM_ARRAY_TASK_ID")


@pytest.fixture
def scontrol(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Path]:
    """Put a `scontrol` on PATH that ends with these lines; return the file of its calls. This is job 77."""
    calls, bin_ = tmp_path / "calls", tmp_path / "bin"
    bin_.mkdir()
    for name in SLURM:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("SLURM_JOB_ID", "77")
    monkeypatch.setenv("PATH", f"{bin_}:{os.environ['PATH']}")

    def make(*lines: str) -> Path:
        script = ["#!/bin/sh", f'echo "$@" with $(ls {tmp_path}/run/checkpoints) >> {calls}', *lines]
        (bin_ / "scontrol").write_text("\n".join(script) + "\n")
        (bin_ / "scontrol").chmod(0o755)
        return calls

    return make


def command(out: Path, *more: str) -> list[str]:
    program = "import sys; from eblvm.engine.cli import main; sys.exit(main())"
    return [sys.executable, "-c", program, *RUN, "--out", str(out), *more]


@pytest.mark.parametrize("number", [signal.SIGUSR1, signal.SIGUSR2], ids=["usr1", "usr2"])
def test_a_requeued_run_ends_with_the_same_bits(
    number: signal.Signals, tmp_path: Path, scontrol: Callable[..., Path]
) -> None:
    calls, out = scontrol("kill -TERM $PPID  # as SLURM does when it takes a job back"), tmp_path / "run"
    process = subprocess.Popen(command(out, "--checkpoint-every", "50", "--requeue"), stdout=subprocess.PIPE, text=True)
    while process.poll() is None and not checkpoint.steps(out / "checkpoints"):
        time.sleep(0.005)
    process.send_signal(number)
    said, _ = process.communicate(timeout=120)
    assert process.returncode == 0
    saved = checkpoint.steps(out / "checkpoints")
    assert saved[0] < 3000
    assert f"interrupted: saved at step {saved[0]}" in said
    assert "asked SLURM to start job 77 again" in said
    (call,) = calls.read_text().splitlines()
    assert call.startswith("requeue 77 with ")
    assert str(saved[0]) in call.split(" with ")[1]  # the checkpoint was there
    assert main([*RUN, "--out", str(out), "--checkpoint-every", "50", "--requeue"]) == 0
    assert main([*RUN, "--out", str(tmp_path / "whole")]) == 0
    assert_bitwise_equal(final_state(out), final_state(tmp_path / "whole"))
    assert reproducible(out / "stats.jsonl") == reproducible(tmp_path / "whole" / "stats.jsonl")
    assert len(calls.read_text().splitlines()) == 1  # a complete run asks for nothing


def interrupted(out: Path, number: signal.Signals, monkeypatch: pytest.MonkeyPatch, requeue: bool = True) -> list[str]:
    """Train until a signal arrives, and return what is said."""
    said: list[str] = []
    at_step(monkeypatch, lambda: os.kill(os.getpid(), number))
    assert not train(small(requeue=requeue), out, said.append)
    assert checkpoint.steps(out / "checkpoints")
    return said


@pytest.mark.parametrize("number", [signal.SIGUSR1, signal.SIGUSR2], ids=["usr1", "usr2"])
def test_without_the_option_a_run_saves_and_leaves(
    number: signal.Signals, tmp_path: Path, scontrol: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = scontrol()
    assert "interrupted: saved at step" in interrupted(tmp_path / "run", number, monkeypatch, requeue=False)[-1]
    assert not calls.exists()


def test_a_job_that_the_user_ends_stays_ended(
    tmp_path: Path, scontrol: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """SIGTERM is `scancel`'s, SIGINT the keyboard's."""
    calls = scontrol()
    assert "interrupted: saved at step" in interrupted(tmp_path / "run", signal.SIGTERM, monkeypatch)[-1]
    assert not calls.exists()


def test_a_task_of_an_array(tmp_path: Path, scontrol: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> None:
    calls = scontrol()
    monkeypatch.setenv("SLURM_ARRAY_JOB_ID", "70")
    monkeypatch.setenv("SLURM_ARRAY_TASK_ID", "3")
    interrupted(tmp_path / "run", signal.SIGUSR1, monkeypatch)
    assert calls.read_text().startswith("requeue 70_3 ")


@pytest.mark.parametrize(
    ("lines", "why"),
    [
        (
            ["echo 'Requested operation is presently disabled for job 77' >&2", "exit 1"],
            "presently disabled for job 77",
        ),
        (["exit 1"], "exit code 1"),
        (["exec sleep 60"], "timed out"),
    ],
    ids=["refused", "silent", "slow"],
)
def test_a_run_is_saved_where_slurm_refuses(
    lines: list[str], why: str, tmp_path: Path, scontrol: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    scontrol(*lines)
    monkeypatch.setattr(slurm, "PATIENCE_S", 2.0)
    *_, saved, sentence = interrupted(tmp_path / "run", signal.SIGUSR1, monkeypatch)
    assert "interrupted: saved at step" in saved
    assert "\n" not in sentence
    assert "SLURM does not start job 77 again" in sentence
    assert why in sentence
    assert "submit it again" in sentence


def test_a_machine_without_scontrol(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "77")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "No such file" in interrupted(tmp_path / "run", signal.SIGUSR1, monkeypatch)[-1]


def test_outside_of_a_job_it_is_a_mistake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    with pytest.raises(UserError, match=r"got --requeue outside of a SLURM job.*submit.*sbatch, or remove --requeue"):
        train(small(requeue=True), tmp_path / "run")
    assert not (tmp_path / "run").exists()
