"""The capture of a step on a fake GPU, by one process and by the second of two: one graph, and nothing in it that a
graph cannot repeat.

The engine's own `CudaRecorder` captures on `capture_model`'s GPU, with its streams, pools and failures. The watch
raises where CUDA would refuse, and names what CUDA would take and a replay get wrong: a kernel that is compiled, or a
convolution's algorithm chosen, for the first time; work of another stream or of a collective of the host; memory of the
graph's pool that something outside keeps, and memory that the graph reads and nobody keeps.
"""

import gc
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist
from torch import Tensor
from torch._subclasses import FakeTensorMode
from torch.multiprocessing.reductions import StorageWeakRef
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._pytree import tree_leaves

from eblvm.engine.autodiff import collectives
from eblvm.engine.config import Config
from eblvm.engine.data.dataset import Dataset
from eblvm.engine.data.input import open_input
from eblvm.engine.methods.base import Rows
from eblvm.engine.training import capture, graphs
from eblvm.engine.training.capture import CudaRecorder
from eblvm.engine.training.graphs import TRIAL, TriedStep
from eblvm.kernels.philox import Key
from tests.rehearsal.capture_model import DURING, Gpu, on
from tests.rehearsal.cases import Case, cases
from tests.rehearsal.runs import as_everyone
from tests.rehearsal.steps import SAMPLES, fake_start
from tests.rehearsal.watch import Watch, site

STEPS = TRIAL + 2
ALWAYS = {  # processes by case; --captures captures every case
    "freyface bidsm N=5 K=5": (1, 2),
    "cifar10 mdsm": (1, 2),
    "cifar10 bimdsm N=0": (1, 2),
    "bidvl": (1, 2),
    "deep bimdsm fp16": (1,),
    "deep bimdsm replicas N=2": (2,),
}
CAPTURABLE = frozenset(("allreduce_", "allgather_", "_allgather_base_", "broadcast_", "reduce_scatter_"))  # by NCCL
TRIED_OUT = frozenset(("convolution", "convolution_backward"))  # cuDNN times its algorithms for sizes that are new


class CaptureWatch(Watch):
    """A watch that also knows whether a capture is under way on `gpu`."""

    def __init__(self, gpu: Gpu) -> None:
        super().__init__()
        self.gpu = gpu
        self.captured: Counter[str] = Counter()
        self._known: set[object] = set()
        self._made: dict[int, tuple[StorageWeakRef, str]] = {}  # inside of the capture
        self._read: dict[int, tuple[StorageWeakRef, str]] = {}  # made before it

    def launch(self, name: str) -> None:
        super().launch(name)
        if self.gpu.capturing is None:
            return
        self.captured[name] += 1
        if self.gpu.current.capture is None:
            self.problems[f"{name} is launched on a stream outside of the capture at {site()}"] += 1

    def builds(self, name: str, variant: object) -> None:
        if self.gpu.capturing is not None and (name, variant) not in self._known:
            self.problems[f"{name} is new inside of the capture at {site()}"] += 1
        self._known.add((name, variant))

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        inside, refused = self.gpu.capturing is not None, self._refused()
        space, name = func._schema.name.split("::")
        tensors = [t for t in tree_leaves((args, kwargs)) if isinstance(t, Tensor)]
        if inside and space == "c10d" and (name not in CAPTURABLE or any(t.device.type != "cuda" for t in tensors)):
            self.problems[f"the collective {name} of {tensors[0].device.type} cannot be captured at {site()}"] += 1
        out = super().__torch_dispatch__(func, types, args, kwargs)
        if name in TRIED_OUT:
            self.builds(name, str([(t.shape, t.stride(), t.dtype) for t in tensors]))
        if inside:
            self._follow(tensors, [t for t in tree_leaves(out) if isinstance(t, Tensor)])
            if self._refused() > refused:
                self.gpu.invalidate(DURING)
        return out

    def _refused(self) -> int:
        return sum(self.waits.values()) + sum(self.copies.values())

    def _follow(self, inputs: list[Tensor], outputs: list[Tensor]) -> None:
        for t in inputs:
            if t.device.type == "cuda" and t.untyped_storage()._cdata not in self._made:
                self._read.setdefault(*remembered(t))
        for t in outputs:
            if t.device.type == "cuda" and t.untyped_storage()._cdata not in self._read:
                self._made.setdefault(*remembered(t))

    def memory_faults(self) -> list[str]:
        """Say which memory of the graph lives on outside of it, and which of the outside it reads has gone."""
        gc.collect()
        kept = {f"memory of the graph is kept: {where}" for ref, where in self._made.values() if not ref.expired()}
        gone = {f"the graph reads memory that is gone: {where}" for ref, where in self._read.values() if ref.expired()}
        return sorted(kept | gone)


def remembered(t: Tensor) -> tuple[int, tuple[StorageWeakRef, str]]:
    storage = t.untyped_storage()
    return storage._cdata, (StorageWeakRef(storage), f"{tuple(t.shape)} at {site()}")


@contextmanager
def processes(count: int) -> Iterator[None]:
    """Be the second of `count` processes whose collectives do nothing."""
    if count == 1:
        yield
        return
    dist.init_process_group("fake", store=FakeStore(), rank=1, world_size=count)
    try:
        with patch.object(dist, "all_gather_object", as_everyone):
            yield
    finally:
        dist.destroy_process_group()


class Captured:
    """What was said, seen and left when a run's first steps were taken and captured."""

    def __init__(
        self,
        config: Config,
        shape: tuple[int, ...],
        count: int,
        inside: Callable[[], object] = int,
        before: Callable[[], object] = int,
    ) -> None:
        self.gpu, self.said = Gpu(), list[str]()
        with ExitStack() as contexts:
            # Fake tensors have no values, so they are equal.
            values = [patch.object(graphs, name, lambda *_: 0.0) for name in ("difference", "_apart")]
            once, mode = patch.object(capture, "WARM_UP", 1), FakeTensorMode(allow_non_fake_inputs=True)
            for one in (processes(count), on(self.gpu), *values, once, mode):
                contexts.enter_context(one)
            self.watch = CaptureWatch(self.gpu)
            before()
            self._steps(config, shape, mode, inside)
        self.faults = [*self.watch.problems, *self.memory, *self.gpu.faults()]

    def _steps(
        self, config: Config, shape: tuple[int, ...], mode: FakeTensorMode, inside: Callable[[], object]
    ) -> None:
        optimisation, method = config.optimisation, config.method
        dtype = getattr(torch, config.running.dtype)
        samples = torch.empty(SAMPLES, *shape, device="cuda", dtype=dtype)
        dataset, seed = (
            Dataset(samples, samples, samples, dtype=dtype),
            mode.from_tensor(optimisation.seeds()).to("cuda"),
        )
        nets = method.nets(config, samples)
        state, plain = fake_start(config, nets, seed, shape), config.step.of(config, nets)
        here = collectives.local_slice(optimisation.batch)
        given = (config.dataset, dataset, seed, optimisation.batch)
        batches = open_input(*given, 1, {}, collectives.rank(), collectives.size())

        def step(*arguments: Any) -> Any:
            moved = plain(*arguments)
            if self.gpu.capturing is not None:
                inside()
            return moved

        take_step = TriedStep(step, CudaRecorder(), self.said.append)
        for i in range(STEPS):
            v, key = batches.batch(i), Key(seed, i)
            noise = method.draw(nets, key, Rows.of(key, v, here.start, optimisation.batch))
            rates = optimisation.rates(i, method.rates(), v)
            with self.watch:
                state, _ = take_step(state, v, noise, rates)
        self.memory = self.watch.memory_faults()

    def problems(self) -> list[str]:
        found = list(self.faults)
        if self.said != [f"--graphs: captured; {TRIAL} steps equal the plain ones to 0.0e+00"]:
            found.append(f"it said {self.said}")
        if (self.gpu.ended, self.gpu.replays) != (1, STEPS):
            found.append(f"{self.gpu.ended} graphs and {self.gpu.replays} replays, expected 1 and {STEPS}")
        return found


def captures(every: bool) -> dict[str, Callable[[], list[str]]]:
    """Return the captures by name: those of ALWAYS, or of every case on as many processes as divide its batch."""
    return {
        f"capture: {case.name}, {count} process{'es' if count > 1 else ''}": partial(captured_case, case, count)
        for case in cases().values()
        for count in ((1, 2) if every else ALWAYS.get(case.name, ()))
        if case.config.optimisation.batch % count == 0
    }


def captured_case(case: Case, count: int) -> list[str]:
    return Captured(case.config, case.shape, count).problems()
