"""`eblvm doctor --gpu`: the first thing to run on a machine with a GPU. It checks there what tests can only rehearse.

Every check compares the GPU with the CPU, whose kernels the test suite compares with their references, and gives a
figure with its bound. A check that raises counts as failed, and the others still run.
"""

from __future__ import annotations

import io
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.utils._pytree import tree_map

from eblvm.engine.config import Config
from eblvm.engine.data.pictures.stream import gpu_of
from eblvm.engine.machine import own_device, set_products
from eblvm.engine.methods.base import Rows
from eblvm.engine.planning.plan import RESERVED, step_cost
from eblvm.engine.recipes import recipe
from eblvm.engine.runs import checkpoint
from eblvm.engine.runs.checkpoint import check_payload
from eblvm.engine.selftest_kernels import Finding, guarded, kernels
from eblvm.engine.training.capture import CudaRecorder
from eblvm.engine.training.graphs import GraphedStep, distance
from eblvm.engine.training.start import initial_state
from eblvm.engine.versions import versions
from eblvm.kernels import philox
from eblvm.kernels.philox import Key, Purpose, purpose

SMALL: dict[str, Any] = {"width": 16, "depth": 12, "posterior_width": 16, "latent": 10, "batch": 16}
TIMED = 20  # steps of a reading


class Steps:
    """Training steps of a configuration on a device, with the same start and the same noise on every device."""

    def __init__(self, config: Config, shape: tuple[int, ...], device: str):
        self.config, self.device = config.replaced(device=device), torch.device(device)
        seeds = config.optimisation.seeds()
        data = philox.uniform(Key(seeds, 0), purpose(Purpose.DATA), config.optimisation.batch, shape)
        self.v, self.seed = data.to(self.device), seeds.to(self.device)
        self.nets = config.method.nets(config, self.v)
        host = initial_state(config, self.nets, seeds, data)
        self.state = tree_map(lambda t: t.to(self.device) if isinstance(t, Tensor) else t, host)
        self.step, self.count = config.step.of(self.config, self.nets), 0

    def run(self, number: int) -> None:
        method, optimisation = self.config.method, self.config.optimisation
        for _ in range(number):
            key = Key(self.seed, self.count)
            noise = method.draw(self.nets, key, Rows.of(key, self.v))
            rates = optimisation.rates(self.count, method.rates(), self.v)
            self.state, _ = self.step(self.state, self.v, noise, rates)
            self.count += 1

    def theta(self) -> list[Tensor]:
        return [p.detach().cpu() for p in self.state.theta.params.values()]


def findings(device: str, scale: int = 1) -> Iterator[Finding]:
    """Yield the results of all checks; `scale` divides the batch sizes of the timed ones."""
    yield from kernels(device)
    yield from steps(device)
    yield from graphs(device)
    yield from memory(device)
    yield from two_processes()
    yield from decoding(device)
    yield from times(device, scale)


def steps(device: str) -> Iterator[Finding]:
    """Compare three steps on the GPU with three on the CPU, the 16-bit precisions with fp32."""
    grbm = recipe("freyface").replaced(latent=40, batch=20)
    deep = recipe("cifar10").replaced(**SMALL)
    for method in ("dsm", "ssm", "bidsm", "vages-dsm", "ksd", "cd", "nce"):
        check = partial(against_cpu, grbm.replaced(method=method), (56,), device)
        yield guarded(f"grbm {method}", 1e-3, "relative", check)
    check = partial(against_cpu, grbm.replaced(method="bidsm", fused=False), (56,), device)
    yield guarded("grbm bidsm plain", 1e-3, "relative", check)
    cases: list[tuple[str, dict[str, Any], float]] = [
        ("mdsm", {"method": "mdsm"}, 1e-3),
        ("bimdsm", {}, 1e-3),
        ("bimdsm N=2", {"N": 2}, 1e-3),
        ("bimdsm channels-last", {"channels_last": True}, 1e-3),
        ("bimdsm tf32", {"precision": "tf32"}, 2e-2),
        ("bimdsm bf16", {"precision": "bf16"}, 5e-2),
        ("bimdsm fp16", {"precision": "fp16"}, 5e-2),
    ]
    for name, changes, bound in cases:
        config = deep.replaced(**changes)
        check = partial(against_cpu, config, (3, 16, 16), device, config.replaced(precision="fp32"))
        yield guarded(f"deep {name}", bound, "relative", check)


def against_cpu(config: Config, shape: tuple[int, ...], device: str, reference: Config | None = None) -> float:
    set_products(config.model.precision)
    try:
        tested, expected = Steps(config, shape, device), Steps(reference or config, shape, "cpu")
        tested.run(3)
        expected.run(3)
        return distance(tested.theta(), expected.theta())
    finally:
        set_products("fp32")


def graphs(device: str) -> Iterator[Finding]:
    """Compare five steps replayed as a CUDA graph with five plain ones, both on the GPU."""
    cases = {
        "grbm bidsm": (recipe("freyface").replaced(latent=40, batch=20), (56,)),
        "deep bimdsm": (recipe("cifar10").replaced(**SMALL), (3, 16, 16)),
    }
    for name, (config, shape) in cases.items():

        def difference(config: Config = config, shape: tuple[int, ...] = shape) -> float:
            plain, replayed = Steps(config, shape, device), Steps(config, shape, device)
            replayed.step = GraphedStep(replayed.step, CudaRecorder())
            plain.run(5)
            replayed.run(5)
            return distance(replayed.theta(), plain.theta())

        yield guarded(f"graph of {name} against plain steps", 1e-4, "relative", difference)


def memory(device: str) -> Iterator[Finding]:
    """Compare the plan's count for a step with the allocator's peak: the excess must fit the plan's reserve."""
    config, shape = recipe("cifar10"), (3, 32, 32)

    def beyond() -> float:
        steps = Steps(config, shape, device)
        torch.cuda.reset_peak_memory_stats(device)
        steps.run(2)
        return (torch.cuda.max_memory_allocated(device) - step_cost(config, shape).total_bytes) / 2**20

    yield guarded("memory of a step beyond the plan", RESERVED / 2**20, "MiB", beyond)


def two_processes() -> Iterator[Finding]:
    """Compare a short run by two processes over NCCL with the same run by one."""
    if torch.cuda.device_count() < 2:
        return

    def difference() -> float:
        with tempfile.TemporaryDirectory() as folder:
            thetas = []
            for number in (1, 2):
                out = Path(folder) / str(number)
                launcher = ["-m", "torch.distributed.run", "--nproc-per-node", str(number), "-m", "eblvm"]
                run = ["train", "checkerboard", "--steps", "20", "--log-every", "20", "--no-fused", "--device", "cuda"]
                command = [sys.executable, *launcher, *run, "--out", str(out)]
                subprocess.run(command, check=True, capture_output=True, env=dict(os.environ))
                payload, _ = checkpoint.newest(out / "checkpoints", check_payload)
                assert payload is not None
                thetas.append(payload["state"]["theta"])
            return distance(thetas[1], thetas[0])

    yield guarded("two processes against one", 1e-4, "relative", difference)


def decoding(device: str) -> Iterator[Finding]:
    """Compare DALI's decoder on the GPU with Pillow's, if DALI is installed."""
    try:
        import nvidia.dali as dali
    except ImportError:
        return

    def difference() -> float:
        ramp = np.add.outer(np.arange(64), np.arange(64))[..., None].repeat(3, 2).astype(np.uint8)
        buffer = io.BytesIO()
        Image.fromarray(ramp).save(buffer, "JPEG", quality=95)
        encoded = np.frombuffer(buffer.getvalue(), np.uint8)
        place = "cpu" if device == "cpu" else "mixed"

        @dali.pipeline_def(batch_size=1, num_threads=1, device_id=gpu_of(torch.device(device)))  # type: ignore[untyped-decorator]
        def decode() -> Any:
            (images,) = dali.fn.external_source(source=lambda: [[encoded]], num_outputs=1, batch=True)
            return dali.fn.decoders.image(images, device=place)

        pipeline = decode()
        pipeline.build()
        (images,) = pipeline.run()
        host = images if device == "cpu" else images.as_cpu()
        image = np.asarray(host.as_array()[0], dtype=float)
        return float(np.abs(image - np.asarray(Image.open(buffer), dtype=float)).mean())

    yield guarded("DALI's decoder against Pillow's", 2.0, "levels of 255", difference)


def times(device: str, scale: int) -> Iterator[Finding]:
    """Measure step times of the published sizes, for the record: no bound."""
    fast = recipe("cifar10").replaced(precision="bf16", channels_last=True)
    cases = {
        "freyface bidsm N=5 K=5": (recipe("freyface"), (560,)),
        "freyface dsm": (recipe("freyface", method="dsm"), (560,)),
        "cifar10 mdsm": (recipe("cifar10", method="mdsm"), (3, 32, 32)),
        "cifar10 bimdsm N=0": (recipe("cifar10"), (3, 32, 32)),
        "cifar10 bimdsm N=0 bf16 channels-last": (fast, (3, 32, 32)),
    }
    for name, (config, shape) in cases.items():
        config = config.replaced(batch=config.optimisation.batch // scale)

        def step_ms(config: Config = config, shape: tuple[int, ...] = shape) -> float:
            steps = Steps(config, shape, device)
            steps.run(3)
            torch.cuda.synchronize(device)
            began = time.perf_counter()
            steps.run(TIMED)
            torch.cuda.synchronize(device)
            return 1e3 * (time.perf_counter() - began) / TIMED

        yield guarded(f"time of a step, {name}", None, "ms", step_ms)


def report(say: Callable[[str], None] = print) -> dict[str, Any]:
    """Run all checks on this process's GPU, print each, and return the record to keep or to send."""
    device = own_device("cuda")
    results = []
    for finding in findings(device):
        results.append(finding._asdict() | {"passed": finding.passed})
        mark = "ok  " if finding.passed else "FAIL"
        figure = "-" if finding.figure is None else f"{finding.figure:.3g}"
        bound = "" if finding.bound is None else f" (at most {finding.bound:g})"
        say(f"{mark} {finding.check:48} {figure} {finding.unit}{bound}")
        if finding.problem:
            say("     " + finding.problem.strip().replace("\n", "\n     "))
    properties = torch.cuda.get_device_properties(device)
    return {
        "schema": "eblvm-gpu/1",
        "gpu": properties.name,
        "capability": f"{properties.major}.{properties.minor}",
        "memory_mib": properties.total_memory // 2**20,
        "gpus": torch.cuda.device_count(),
        "versions": versions(device),
        "cuda": torch.version.cuda,
        "findings": results,
    }
