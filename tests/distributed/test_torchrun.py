"""`torchrun -m eblvm train`: one folder, one log; a killed worker, another world size, an error."""

import contextlib
import io
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from torch.utils._pytree import tree_flatten

from eblvm.engine.cli import main
from eblvm.engine.runs import checkpoint
from eblvm.engine.runs.stats import read_rows, reproducible
from tests.distributed.ranks import on_ranks

OPTIONS = (
    "train digits --model deep --width 2 --latent 3 --head-width 5 --posterior-width 2 --batch 8 --N 2 --K 1 "
    "--checkpoint-every 10 --log-every 5 --validations 2 --ema 0.9 --steps 40"
).split()


def torchrun(out: Path, *more: str, options: tuple[str, ...] = ()) -> subprocess.Popen[str]:
    start = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", *more]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    command = [*start, "-m", "eblvm", *OPTIONS, *options, "--out", str(out)]
    return subprocess.Popen(command, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def newest(folder: Path) -> dict:
    payload, _ = checkpoint.newest(folder / "checkpoints")
    assert payload is not None
    return payload


def workers(process: subprocess.Popen[str]) -> list[int]:
    """Return the process ids of torchrun's workers, in the order of their ranks."""
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    return sorted(int(child) for child in children)


def wait_for(folder: Path, step: int, process: subprocess.Popen[str]) -> None:
    while process.poll() is None and max(checkpoint.steps(folder / "checkpoints"), default=0) < step:
        time.sleep(0.005)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Train the uninterrupted run of two processes and return its folder."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    assert on_ranks(2, main, [*OPTIONS, "--out", str(folder)]) == [0, 0]
    return folder


def test_one_folder_and_one_log(whole: Path) -> None:
    rows = read_rows(whole / "stats.jsonl")
    assert [row["step"] for row in rows] == list(range(5, 45, 5))
    assert checkpoint.steps(whole / "checkpoints") == [40, 30]


def test_a_killed_worker_is_restarted_and_the_end_is_bitwise_the_same(whole: Path, tmp_path: Path) -> None:
    dice = random.Random(time.time_ns())
    target, victim = dice.choice([10, 20, 30]), dice.randrange(2)
    process = torchrun(tmp_path / "run", "--max-restarts", "1")
    wait_for(tmp_path / "run", target, process)
    os.kill(workers(process)[victim], signal.SIGKILL)
    out, error = process.communicate(timeout=300)
    assert process.returncode == 0, error
    assert f"continuing {tmp_path / 'run'} at step" in out, (target, victim)
    a, b = newest(whole), newest(tmp_path / "run")
    for x, y in zip(tree_flatten(a)[0], tree_flatten(b)[0], strict=True):
        assert torch.equal(x, y) if isinstance(x, torch.Tensor) else x == y
    assert reproducible(tmp_path / "run" / "stats.jsonl") == reproducible(whole / "stats.jsonl")


def test_sigterm_saves_on_all_ranks_and_another_world_size_continues(whole: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    process = torchrun(folder)
    wait_for(folder, 10, process)
    process.send_signal(signal.SIGTERM)
    out, _ = process.communicate(timeout=300)
    saved = checkpoint.steps(folder / "checkpoints")[0]
    assert f"interrupted: saved at step {saved}" in out
    assert saved < 40
    assert main([*OPTIONS, "--out", str(folder)]) == 0
    for x, y in zip(tree_flatten(newest(whole))[0], tree_flatten(newest(folder))[0], strict=True):
        if isinstance(x, torch.Tensor):
            torch.testing.assert_close(x, y, rtol=1e-3, atol=1e-3)  # fp32, other orders of summation


def test_a_warning_of_the_scheduler_saves_and_asks_for_the_job_once(
    whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SIGUSR1 to torchrun, which passes it on to both workers; the same command then ends with the same bits."""
    folder, calls = tmp_path / "run", tmp_path / "calls"
    (tmp_path / "scontrol").write_text(f'#!/bin/sh\necho "$@" >> {calls}\n')
    (tmp_path / "scontrol").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setenv("SLURM_JOB_ID", "77")
    monkeypatch.delenv("SLURM_ARRAY_TASK_ID", raising=False)
    passed_on = "--signals-to-handle", "SIGTERM,SIGINT,SIGHUP,SIGQUIT,SIGUSR1"
    process = torchrun(folder, *passed_on, options=("--requeue",))
    wait_for(folder, 10, process)
    process.send_signal(signal.SIGUSR1)
    out, _ = process.communicate(timeout=300)
    saved = checkpoint.steps(folder / "checkpoints")[0]
    assert f"interrupted: saved at step {saved}" in out
    assert saved < 40
    assert calls.read_text() == "requeue 77\n"
    process = torchrun(folder, *passed_on, options=("--requeue",))
    _, error = process.communicate(timeout=300)
    assert process.returncode == 0, error
    for x, y in zip(tree_flatten(newest(whole))[0], tree_flatten(newest(folder))[0], strict=True):
        assert torch.equal(x, y) if isinstance(x, torch.Tensor) else x == y
    assert calls.read_text() == "requeue 77\n"


def mistaken(folder: str) -> tuple[int, str]:
    """Return exit code and stderr of a run into a folder that is not a run folder."""
    said = io.StringIO()
    with contextlib.redirect_stderr(said):
        return main([*OPTIONS, "--out", folder]), said.getvalue()


def test_an_error_of_the_first_rank_is_raised_on_all_and_printed_once(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("chapter 1")
    (code, said), other = on_ranks(2, mistaken, str(tmp_path))
    assert (code, other) == (2, (2, ""))
    assert "is not a run folder; nothing was overwritten" in said
