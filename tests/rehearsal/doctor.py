"""`eblvm doctor --gpu` from its first to its last check on a fake GPU: none may raise. Its figures mean nothing."""

import io
import json
import tempfile
from collections.abc import Callable
from contextlib import ExitStack, redirect_stdout, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from torch._subclasses import FakeTensorMode
from torch._subclasses.fake_tensor import unset_fake_temporarily

from eblvm.engine import selftest, selftest_kernels
from eblvm.engine.cli import doctor, train
from eblvm.engine.config import Config
from eblvm.engine.methods.base import State, empty_weights, to_tree
from eblvm.engine.optim.sgd import Sgd
from eblvm.engine.runs import checkpoint
from tests.rehearsal.steps import nothing_drawn_on_the_host
from tests.rehearsal.watch import Watch

CHECKS = 37  # at least; one more if DALI is installed


class Steps(selftest.Steps):
    """One step of each model on the GPU: every kind of step has a case of its own. On the host, whose native kernels
    cannot run fake tensors, the GPU's state again."""

    known: set[str]
    last: "Steps"

    def __init__(self, config: Config, shape: tuple[int, ...], device: str):
        if device == "cpu":
            self.device, self.state = torch.device("cpu"), Steps.last.state
            return
        super().__init__(config, shape, device)
        Steps.last = self

    def run(self, number: int) -> None:
        if self.device.type == "cpu":
            return
        kind = f"{self.config.model.kind} {type(self.step).__name__}"
        if kind not in self.known:
            self.known.add(kind)
            super().run(1)


def trained(command: list[str], **_: Any) -> None:
    """Replace torchrun: check the run's flags, and write its checkpoint."""
    words = command[command.index("eblvm") + 1 :]
    train.main([*words[1:], "--dry-run"])
    with unset_fake_temporarily():
        state = to_tree(State(Sgd().init({"W": torch.ones(2, 3)}), empty_weights())) | {"theta_opt": {}, "phi_opt": {}}
        out = Path(words[-1])
        out.mkdir()
        checkpoint.save(out / "checkpoints", 20, {"step": 20, "best": {}, "state": state}, keep=1)


def decoded(_: Any) -> tuple[Any]:
    images = SimpleNamespace(as_array=lambda: np.zeros((1, 64, 64, 3)))
    return (SimpleNamespace(as_cpu=lambda: images),)


def self_test() -> list[str]:
    """Return the problems of the self-test, in words."""
    Steps.known = set()
    patches: list[Any] = [
        patch.object(selftest, "Steps", Steps),
        patch.object(selftest.subprocess, "run", trained),
        patch.object(selftest, "step_cost", lambda *_: SimpleNamespace(total_bytes=0)),  # seconds, on the meta device
        patch.object(selftest_kernels, "chains", chains_on_the_gpu(selftest_kernels.chains)),
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
        record = json.loads(Path(folder, "gpu.json").read_text())
    checks = {finding["check"]: finding for finding in record["findings"]}
    problems = [f"{name}: {finding['problem']}" for name, finding in checks.items() if finding["problem"]]
    problems += [f"{name} has no figure" for name, finding in checks.items() if finding["figure"] is None]
    if len(checks) < CHECKS or f"{len(checks)} checks on a fake GPU" not in said.getvalue():
        problems.append(f"{len(checks)} checks, expected {CHECKS}, and that it says so: {said.getvalue()[-300:]}")
    return problems


def chains_on_the_gpu(chains: Callable[..., Any]) -> Callable[..., Any]:
    """Run the host's chains on the GPU too, as the host's kernel is native."""
    return lambda place: chains("cuda").cpu() if place == "cpu" else chains(place)
