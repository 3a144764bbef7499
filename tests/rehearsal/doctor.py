"""`eblvm doctor --gpu` from its first to its last check on a fake GPU: none may raise. Its figures mean nothing."""

import io
import json
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, redirect_stdout, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from torch import Tensor
from torch._subclasses import FakeTensorMode
from torch._subclasses.fake_tensor import unset_fake_temporarily

from eblvm.engine.cli import doctor, train
from eblvm.engine.config import Config
from eblvm.engine.methods.base import State, empty_weights, to_tree
from eblvm.engine.optim.adam import Adam
from eblvm.engine.runs import checkpoint
from eblvm.engine.selftest import costs, kernels, processes, record, replays, trial
from eblvm.engine.selftest.finding import Finding, run
from eblvm.engine.selftest.isolation import Groups, listed
from tests.rehearsal.steps import nothing_drawn_on_the_host
from tests.rehearsal.watch import Watch

CHECKS = 168  # at least; one more if DALI is installed


class Trial(trial.Trial):
    """One step of each kind on the GPU: every method's step has a case of its own. On the host, whose native kernels
    cannot run fake tensors, the outcome of the GPU again."""

    known: set[str]
    last: Any

    def __init__(self, config: Config, shape: tuple[int, ...], device: str):
        self.on_host = device == "cpu"
        if self.on_host:
            return
        super().__init__(config, shape, device)

    def run(self, number: int = 1) -> "Trial":
        kind = "" if self.on_host else f"{self.config.model.kind} {type(self.step).__name__}"
        if not self.on_host and kind not in self.known:
            self.known.add(kind)
            super().run(1)
            Trial.last = super().outcome()
        return self

    def outcome(self) -> Any:
        return Trial.last


def trained(run: Any, device: str, number: int, out: Path, limit_s: float) -> None:
    """Replace torchrun: check the run's flags, and write what its one step leaves."""
    train.main([*run, "--device", device, "--dry-run"])
    with unset_fake_temporarily():
        state = State(Adam().init({"W": torch.ones(2, 3)}), empty_weights())
        out.mkdir()
        checkpoint.save(out / "checkpoints", 1, {"step": 1, "best": {}, "state": to_tree(state)}, keep=1)
        (out / "stats.jsonl").write_text('{"loss": 1.0}\n')


def in_this_process(groups: Groups, device: str, begin: Callable[[str], None]) -> Iterator[Finding]:
    """Replace the process of the checks, which would have no fake GPU."""
    return run(listed(groups, device), begin)


def planned(config: Config, shape: tuple[int, ...], device: str) -> Any:
    """Replace the plan, which takes seconds on the meta device."""
    return SimpleNamespace(config=config, total_bytes=0, flops=1)


def decoded(_: Any) -> tuple[Any]:
    images = SimpleNamespace(as_array=lambda: np.zeros((1, 64, 64, 3)))
    return (SimpleNamespace(as_cpu=lambda: images),)


def self_test() -> list[str]:
    """Return the problems of the self-test, in words."""
    Trial.known = set()
    patches: list[Any] = [
        *(patch.object(module, "Trial", Trial) for module in (trial, replays, costs)),
        patch.object(processes, "trained", trained),
        patch.object(record, "isolated", in_this_process),
        patch.object(costs, "fitting", planned),
        patch.object(kernels, "chains", chains_on_the_gpu(kernels.chains)),
        patch.object(kernels, "on_host", on_the_gpu),
        nothing_drawn_on_the_host(),
    ]
    try:
        from nvidia.dali.pipeline import Pipeline

        patches += [patch.object(Pipeline, "build", lambda _: None), patch.object(Pipeline, "run", decoded)]
    except ImportError:
        pass
    said = io.StringIO()
    with tempfile.TemporaryDirectory() as folder, ExitStack() as contexts:
        for one in (*patches, redirect_stdout(said), FakeTensorMode(allow_non_fake_inputs=True), Watch()):
            contexts.enter_context(one)
        with suppress(SystemExit):  # its figures mean nothing
            doctor.main(["--gpu", "--json", f"{folder}/gpu.json"])
        kept = json.loads(Path(folder, "gpu.json").read_text())
    checks = {finding["check"]: finding for finding in kept["findings"]}
    problems = [f"{name}: {finding['problem']}" for name, finding in checks.items() if finding["problem"]]
    problems += [f"{name} has no figure" for name, finding in checks.items() if finding["figure"] is None]
    if len(checks) < CHECKS or kept["verdict"] not in said.getvalue():
        problems.append(f"{len(checks)} checks, expected {CHECKS}, and a verdict: {said.getvalue()[-300:]}")
    if f" {len(checks)} checks " not in kept["verdict"] or "on a fake GPU" not in kept["verdict"]:
        problems.append(f"the verdict is {kept['verdict']}")
    for name in ("gpu", "driver", "versions", "kernels"):
        if name not in kept:
            problems.append(f"the record has no {name}")
    if sum("peak unknown of a fake GPU" in finding["unit"] for finding in checks.values()) < 5:
        problems.append("no use of the peak")
    return problems


def chains_on_the_gpu(chains: Callable[..., Any]) -> Callable[..., Any]:
    """Run the host's chains on the GPU too, as the host's kernel is native."""
    return lambda place: chains("cuda").cpu() if place == "cpu" else chains(place)


def on_the_gpu(op: kernels.Op, dtype: torch.dtype) -> list[Tensor]:
    """Return what the op on the GPU gives in the place of its reference, a part of which is native."""
    found = kernels.derivatives(op.op, [t.to("cuda") for t in op.tensors], op.orders)
    return [t.cpu().to(dtype) for t in found]
