"""Captured steps of two processes over gloo, by a stand-in that runs again what a graph would replay."""

import os
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

from eblvm.engine.autodiff import collectives
from eblvm.engine.config import Config
from eblvm.engine.errors import WithoutGraphsError
from eblvm.engine.methods.base import Rows
from eblvm.engine.recipes import recipe
from eblvm.engine.runs import checkpoint
from eblvm.engine.training.capture import UnusableDeviceError
from eblvm.engine.training.graphs import TriedStep
from eblvm.engine.training.start import initial_state
from eblvm.kernels.philox import Key
from tests.distributed.ranks import on_ranks

B, STEPS = 8, 6
DEEP = recipe("digits", "deep").replaced(width=2, latent=3, head_width=5, posterior_width=2, batch=B, K=2, ema=0.9)
BIDVL = recipe("digits", method="bidvl").replaced(width=2, latent=3, posterior_width=2, generator_width=2, batch=B)
CASES = {
    "mdsm": DEEP.replaced(method="mdsm"),
    "bimdsm N=0": DEEP,
    "bimdsm N=2": DEEP.replaced(N=2, schedule="cosine"),
    "bimdsm micro-batch": DEEP.replaced(micro_batch=2),
    "bidvl": BIDVL.replaced(K=2),
    "grbm bidsm": recipe("digits").replaced(latent=5, batch=B, N=2, K=2),
    "grbm pcd": recipe("digits", method="pcd").replaced(latent=5, batch=B),
}


class Replayed:
    """Runs the step again where a graph would replay it; on one rank it fails at a point, if asked to."""

    def __init__(self, fails: tuple[int, str] = (-1, ""), error: type[Exception] = RuntimeError):
        self.fails, self.error = fails, error
        self.run: Callable[[], None] = lambda: None
        self.replays = 0

    def warm_up(self, run: Callable[[], None]) -> None:
        if not self.fails_at("warm-up"):
            run()

    def capture(self, run: Callable[[], None]) -> None:
        self.fails_at("capture")
        self.run = run

    def replay(self) -> None:
        self.replays += 1
        if not self.fails_at("replay"):
            self.run()

    def fails_at(self, point: str) -> bool:
        """Fail on one rank. On the others the host launches the same and does not wait for it, as with NCCL."""
        rank, failing = self.fails
        if (collectives.rank(), point) == self.fails:
            raise self.error(f"failed in its {point}")
        return point == failing and rank >= 0


def drive(config: Config, wrap: Callable[[Any], Any]) -> list[Tensor]:
    """Return this rank's state after STEPS steps."""
    data = torch.rand(B, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    data = data.flatten(1) if config.recipe == "digits" and "grbm" in config.model.kind else data
    seed, shard, method = config.optimisation.seeds(), collectives.local_slice(B), config.method
    nets = method.nets(config, data)
    state: Any = initial_state(config, nets, seed, data)
    step, v = wrap(config.step.of(config, nets)), data[shard]
    for i in range(STEPS):
        noise = method.draw(nets, Key(seed, i), Rows.of(Key(seed, i), v, shard.start, B))
        state, _ = step(state, v, noise, config.optimisation.rates(i, method.rates(), v))
    return tree_leaves(tree_map(torch.clone, state))


def both() -> dict[str, Any]:
    """Return for each case the plain state, the replayed one, what was said and the number of replays."""
    results = {}
    for name, config in CASES.items():
        said, recorder = list[str](), Replayed()
        found = drive(config, partial(TriedStep, recorder=recorder, say=said.append))
        results[name] = drive(config, lambda step: step), found, said, recorder.replays
    return results


def after_a_failure(fails: tuple[int, str], error: type[Exception]) -> Any:
    said: list[str] = []
    config = CASES["bimdsm N=2"]
    try:
        found = drive(config, partial(TriedStep, recorder=Replayed(fails, error), say=said.append))
    except WithoutGraphsError as ended:
        return str(ended)
    return drive(config, lambda step: step), found, said


@pytest.fixture(scope="module")
def ranks() -> list[dict[str, Any]]:
    return on_ranks(2, both)


@pytest.mark.parametrize("name", CASES)
def test_replays_on_two_processes_have_the_bits_of_plain_steps(name: str, ranks: list[dict[str, Any]]) -> None:
    for expected, found, said, replays in (rank[name] for rank in ranks):
        assert "captured; 3 steps equal the plain ones to 0.0e+00" in said[0]
        assert replays == STEPS  # three of the trial, three of the run
        for x, y in zip(found, expected, strict=True):
            assert torch.equal(x, y)


def failures() -> list[Any]:
    ended = [((1, "warm-up"), RuntimeError), ((0, "replay"), RuntimeError), ((1, "capture"), UnusableDeviceError)]
    gone_on = [((rank, "capture"), RuntimeError) for rank in (0, 1)]
    return [(fails, after_a_failure(fails, error)) for fails, error in [*gone_on, *ended]]


def test_one_failure_is_that_of_all() -> None:
    """All go on without a graph that one could not capture, or end where one has left a collective or lost its GPU."""
    for answers in on_ranks(2, failures):
        for (rank, point), answer in answers:
            who = f"{'rank 1: ' if rank else ''}the step cannot be captured (failed in its {point})"
            if isinstance(answer, str):
                assert answer == f"{who}, and this process cannot go on; use graphs=False (--no-graphs)"
                continue
            expected, found, said = answer
            assert point == "capture"
            assert said == [f"--graphs: {who}; going on without"]
            for x, y in zip(found, expected, strict=True):
                assert torch.equal(x, y)
        assert [type(answer) for _, answer in answers] == [tuple] * 2 + [str] * 3


LOST = """
from eblvm.engine.config import Running
from eblvm.engine.training import loop
from eblvm.engine.training.capture import UnusableDeviceError

class Lost:
    def warm_up(self, run):
        run()

    def capture(self, run):
        raise UnusableDeviceError("CUDA error: an illegal memory access was encountered")

loop.CudaRecorder = Lost
loop.takes_graphs = lambda config: config.step.graphs is None
loop.on_this_machine = lambda config: (setattr(Running, "on_cuda", True), config)[1]  # once the command has been read
"""


@pytest.mark.parametrize("processes", [1, 2])
def test_a_command_that_lost_its_gpu_starts_again_without_graphs(processes: int, tmp_path: Path) -> None:
    """The same processes, to the launcher: torchrun sees no failure, and the bits are those of a plain run."""
    (tmp_path / "lost_gpu.py").write_text(LOST)
    run = "train digits --method dsm --latent 5 --batch 8 --steps 6 --log-every 1 --validations 0".split()
    start = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "eblvm"]
    command = [*(start if processes > 1 else [sys.executable, "-m", "eblvm"]), *run]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    weights, outputs = [], []
    for name, with_file in (("plain", []), ("lost", ["--with", str(tmp_path / "lost_gpu.py")])):
        out = ["--out", str(tmp_path / name)]
        done = subprocess.run([*command, *with_file, *out], env=environment, text=True, capture_output=True)
        assert done.returncode == 0, done.stderr[-2000:]
        payload, _ = checkpoint.newest(tmp_path / name / "checkpoints")
        assert payload is not None
        weights.append(tree_leaves(payload["state"]))
        outputs.append(done.stdout)
    why = "the step cannot be captured (CUDA error: an illegal memory access was encountered)"
    assert f"--graphs: {why}, and this process cannot go on; starting again without" in outputs[1]
    assert outputs[1].count("starting again") == 1
    for x, y in zip(*weights, strict=True):
        assert torch.equal(x, y) if isinstance(x, Tensor) else x == y
