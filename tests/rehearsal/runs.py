"""Whole runs as the second of two processes: `train` from torchrun's environment on, on its own fake GPU.

The process group is torch's fake one, the first process's answers are made here, and DALI, if it is installed, builds
its graph without decoding anything. Checked are the device of every tensor, and the settings of torch, NCCL and DALI.
"""

import os
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist
from torch import Tensor
from torch._subclasses import FakeTensorMode
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._pytree import tree_leaves

from eblvm.engine.config import Config
from eblvm.engine.data import input as data_input
from eblvm.engine.data.dataset import Dataset
from eblvm.engine.data.pictures.framing import Framing
from eblvm.engine.data.pictures.stream import PicturesOnDemand
from eblvm.engine.machine import start_thread
from eblvm.engine.recipes import recipe
from eblvm.engine.training import distributed
from eblvm.engine.training.loop import train
from tests.rehearsal.cases import IMAGE, POINT
from tests.rehearsal.steps import nothing_drawn_on_the_host
from tests.rehearsal.streams import Streams
from tests.rehearsal.watch import Watch

TORCHRUN = {"LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2", "RANK": "1", "WORLD_SIZE": "2"}
OWN = torch.device("cuda", 1)
SAMPLES = 60


def as_everyone(answers: list[Any], x: Any) -> None:
    """Answer what this rank does, for all of them."""
    answers[:] = [x] * len(answers)


class Findings:
    """Faults of a run, in words: everything that is not on its own GPU or not as configured."""

    def __init__(self) -> None:
        self.problems: list[str] = []

    def equal(self, what: str, actual: object, expected: object) -> None:
        if actual != expected:
            self.problems.append(f"{what}: {actual}, expected {expected}")

    def on(self, what: str, tree: Any, device: torch.device) -> None:
        for place in {t.device for t in tree_leaves(tree) if isinstance(t, Tensor)}:
            self.equal(f"a tensor of {what} is on", place, device)


def grbm() -> list[str]:
    config = recipe("freyface").replaced(latent=40, batch=20, N=2, K=2, deterministic=True)
    return second_of_two(config, lambda: Dataset(*(torch.empty(SAMPLES, *POINT) for _ in range(3))))


def network() -> list[str]:
    """Run a network whose checkpointing is chosen by the free memory of its GPU."""
    return second_of_two(small_network("cifar10", checkpoint="auto", precision="tf32"), images)


def pictures() -> list[str]:
    """Run on pictures decoded by DALI on this process's GPU, in a thread that has to select that GPU too."""
    return second_of_two(small_network("celeba64", input="dali"), images_on_demand)


def small_network(name: str, **changes: Any) -> Config:
    size = {"width": 8, "depth": 12, "posterior_width": 8, "latent": 10, "head_width": 16, "batch": 6, "K": 2}
    return recipe(name).replaced(**size, **changes)


def images() -> Dataset:
    return Dataset(*(torch.empty(SAMPLES, *IMAGE, dtype=torch.uint8) for _ in range(3)))


def images_on_demand() -> Dataset:
    streamed: Any = PicturesOnDemand([Path(f"{i}.jpg") for i in range(SAMPLES)], Framing(IMAGE[1]))
    return images()._replace(train=streamed)


def second_of_two(config: Config, load: Callable[[], Dataset]) -> list[str]:
    """Train two steps with validation and checkpoints, and run everything before them."""
    steps = {"steps": 2, "log_every": 1, "checkpoint_every": 1, "validations": 1, "device": "cuda", "timeout": 5.0}
    config, findings = config.replaced(**steps), Findings()
    given: dict[str, Any] = {}
    begin = dist.init_process_group

    def init_process_group(backend: str, **how: Any) -> None:
        given.update(how, backend=backend)
        begin("fake", store=FakeStore(), rank=how["rank"], world_size=how["world_size"])

    def from_rank0(action: Callable[[], Any]) -> Any:
        """Answer as rank 0. Tensors arrive on the device they were on: those of a GPU would all be on rank 0's."""
        answer = action()
        findings.on("what rank 0 sends", answer, torch.device("cpu"))
        return answer

    def for_rank0(action: Callable[[], None]) -> None:
        saved = [x for x in getattr(action, "args", ()) if isinstance(x, dict)]
        findings.on("the state", [x["state"] for x in saved if "state" in x], OWN)

    def memory(device: Any) -> tuple[int, int]:
        findings.equal("the GPU whose free memory is asked for", torch.device(device), OWN)
        return 2**36, 2**36

    patches: list[Any] = [
        patch.dict(os.environ, TORCHRUN),
        patch.object(dist, "rendezvous", lambda _: iter([(dist.HashStore(), 1, 2)])),
        patch.object(dist, "init_process_group", init_process_group),
        patch.object(dist, "all_gather_object", as_everyone),
        patch.object(distributed, "Peers", lambda *_: SimpleNamespace(stop=lambda: None)),
        patch.object(distributed, "total", lambda values: values),
        patch.object(distributed, "broadcast_from_rank0", from_rank0),
        patch.object(distributed, "on_rank0", for_rank0),
        patch.object(torch.cuda, "mem_get_info", memory),
        patch.object(type(config.dataset), "load", lambda *_: load()),
        patch("eblvm.engine.training.loop.check_values", lambda *_: None),  # fake tensors have no values
    ]
    mode, folder = FakeTensorMode(allow_non_fake_inputs=True), tempfile.TemporaryDirectory()
    torch.cuda.set_device(0)
    try:
        with ExitStack() as contexts:
            for one in (folder, *patches, mode, nothing_drawn_on_the_host(), dali(mode, findings)):
                contexts.enter_context(one)
            watch = contexts.enter_context(Watch())
            train(config, Path(folder.name) / "run", lambda _: None)
        findings.equal("the current GPU", torch.cuda.current_device(), 1)
        findings.equal("NCCL's GPU", given["device_id"], OWN)
        findings.equal("NCCL's patience", given["timeout"], timedelta(minutes=5))
        findings.equal("deterministic cuDNN", torch.backends.cudnn.deterministic, config.running.deterministic)
        products = torch.backends.cuda.matmul.fp32_precision
        findings.equal("products", products, "tf32" if config.model.precision == "tf32" else "ieee")
    finally:
        torch.cuda.set_device(0)
    return [*findings.problems, *watch.problems]


@contextmanager
def dali(mode: FakeTensorMode, findings: Findings) -> Iterator[None]:
    """Build DALI's graph for its GPU, and run it as far as the source that names the pictures."""
    try:
        from nvidia.dali.pipeline import Pipeline
    except ImportError:
        yield
        return

    streams, given, read = Streams(), [], data_input.Streaming.batch

    def feed(_: Any, out: Tensor, cuda_stream: Any) -> None:
        streams.copied(out, cuda_stream)

    def batch(batches: data_input.Streaming, step: int) -> Tensor:
        given.append(read(batches, step))
        return given[-1]

    def begin(threads: int, device: torch.device) -> None:
        mode.__enter__()  # every thread has its own modes and its own current GPU
        start_thread(threads, device)

    def run(pipeline: Any) -> tuple[Any]:
        findings.equal("DALI's GPU", pipeline.device_id, OWN.index)
        findings.equal("the current GPU of DALI's thread", torch.cuda.current_device(), OWN.index)
        return (SimpleNamespace(as_tensor=lambda: None),)

    class OneAtATime(ThreadPoolExecutor):  # as the mode is entered in two threads
        def submit(self, *task: Any, **how: Any) -> Any:
            future = super().submit(*task, **how)
            wait([future])
            return future

    with ExitStack() as contexts:
        contexts.enter_context(patch.object(data_input, "ThreadPoolExecutor", OneAtATime))
        for name, replacement in (("build", lambda _: None), ("run", run), ("checkpoint", lambda _: b"\0")):
            contexts.enter_context(patch.object(Pipeline, name, replacement))
        contexts.enter_context(patch.object(data_input, "start_thread", begin))
        contexts.enter_context(patch.object(data_input.Streaming, "batch", batch))
        contexts.enter_context(streams.installed())
        contexts.enter_context(patch("nvidia.dali.plugin.pytorch.feed_ndarray", feed))
        yield
    if given:
        findings.problems += streams.faults(given)


RUNS: dict[str, Callable[[], list[str]]] = {f"run: {run.__name__}": run for run in (grbm, network, pictures)}
