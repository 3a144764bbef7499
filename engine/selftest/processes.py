"""A step of two processes against that of one, with a time limit: a collective may hang."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

import torch

from eblvm.engine.errors import UserError
from eblvm.engine.runs import checkpoint
from eblvm.engine.runs.checkpoint import check_payload
from eblvm.engine.selftest.finding import Measured, SelfCheck
from eblvm.engine.selftest.trial import LEAST, LOSSES, Outcome, worst

LIMIT_S = 300.0  # for a run of one step, its start and its end
GRACE_S = 60.0  # more than the 30 s after which torchrun kills workers that do not end
RUNS = {
    "grbm bidsm": ("checkerboard", "--method", "bidsm", "--no-fused"),
    "mlp vages-dsm": ("checkerboard", "--model", "mlp", "--method", "vages-dsm"),
}


def processes(device: str) -> Iterator[SelfCheck]:
    """Yield the comparison of two processes with one: on a GPU each, over NCCL, or on the CPU over gloo."""
    if torch.device(device).type == "cuda" and torch.cuda.device_count() < 2:
        return
    for name, run in RUNS.items():
        yield SelfCheck(f"two processes, {name}", partial(two_against_one, run, torch.device(device).type))


def two_against_one(run: Sequence[str], device: str, limit_s: float = LIMIT_S) -> Measured:
    with tempfile.TemporaryDirectory() as folder:
        outs = [Path(folder) / str(number) for number in (1, 2)]
        for number, out in enumerate(outs, 1):
            trained(run, device, number, out, limit_s)
        one, two = map(outcome, outs)
    return Measured(worst(two, one), LEAST["float32"])


def trained(run: Sequence[str], device: str, number: int, out: Path, limit_s: float) -> None:
    """Train for one step, for as long as the time limit at most."""
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(number)] if number > 1 else []
    step = ["--steps", "1", "--log-every", "1", "--validations", "0", "--device", device, "--out", str(out)]
    command = [sys.executable, *torchrun, "-m", "eblvm", "train", *run, *step]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment()
    ) as started:
        try:
            said, _ = started.communicate(timeout=limit_s)
        except subprocess.TimeoutExpired:
            end(started)
            raise UserError(f"{number} processes took more than {limit_s:g} s for one step; they were ended") from None
    if started.returncode:
        raise UserError(f"a run of {number} processes ended with code {started.returncode}: {said[-2000:]}")


def end(started: subprocess.Popen[str]) -> None:
    """End a run. torchrun ends its workers, which have sessions of their own, when it is asked to end: at once those
    that react, after 30 s those that do not."""
    started.terminate()
    try:
        started.communicate(timeout=GRACE_S)
    except subprocess.TimeoutExpired:
        started.kill()


def environment() -> dict[str, str]:
    """Return the environment of a run of its own, also where this process is one of torchrun's."""
    return {name: value for name, value in os.environ.items() if name not in ("RANK", "LOCAL_RANK", "WORLD_SIZE")}


def outcome(out: Path) -> Outcome:
    """Return what the one step of a finished run computed."""
    payload, _ = checkpoint.newest(out / "checkpoints", check_payload)
    if payload is None:
        raise UserError("the run wrote no checkpoint")
    state = payload["state"]
    row = json.loads((out / "stats.jsonl").read_text().splitlines()[-1])
    moments = (state[of]["m"] if state[of] else {} for of in ("theta_opt", "phi_opt"))
    theta, phi = ({name: t.double() for name, t in m.items()} for m in moments)
    return Outcome(theta, phi, {name: torch.tensor(row[name]).double() for name in LOSSES if name in row})
