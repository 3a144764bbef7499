"""`--graphs`: a training step captured once as a CUDA graph and replayed, so that the host launches one thing per step.

A replay runs the same kernels on the same addresses. So everything that changes from step to step lies in tensors made
once: the batch, the noise and the rates are copied into them before a replay, and the state is copied back into its
own memory at the end of the captured step. What a step may not do inside is what the rehearsal of the tests forbids
anyway: wait for the device, copy from the host, or branch on a value.

Before it is trusted, a captured step is taken beside the plain one: three steps from equal states, which must agree to
rounding (`TOLERANCE`); else the plain one goes on, and one line says so.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_map

from eblvm.engine.methods.base import TrainingStep

TRIAL, WARM_UP = 3, 3
TOLERANCE = 1e-4  # of fp32's largest entry: replays may choose other algorithms than the plain step


class Recorder(Protocol):
    def capture(self, run: Callable[[], None]) -> None: ...
    def replay(self) -> None: ...


class CudaRecorder:
    """A CUDA graph, after a few runs on a side stream, as torch's notes on graphs ask for."""

    def __init__(self) -> None:
        self._graph = torch.cuda.CUDAGraph()

    def capture(self, run: Callable[[], None]) -> None:
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(WARM_UP):
                run()
        torch.cuda.current_stream().wait_stream(side)
        # The thread that decodes the next pictures may allocate meanwhile.
        with torch.cuda.graph(self._graph, capture_error_mode="thread_local"):
            run()

    def replay(self) -> None:
        self._graph.replay()


class GraphedStep:
    """`step` with its inputs and its state in memory that never moves. What it returns lives there, until the next."""

    def __init__(self, step: TrainingStep, recorder: Recorder):
        self._step, self._recorder = step, recorder
        self._inputs: Any = None
        self._state: Any = None
        self._info: dict[str, Tensor] = {}

    def __call__(self, state: Any, v: Tensor, noise: Any, rates: dict[str, Tensor]) -> tuple[Any, dict[str, Tensor]]:
        given = (v, noise, rates)
        if self._inputs is None:
            self._inputs, self._state = tree_map(_own, given), tree_map(_own, state)
            kept = tree_map(_own, state)
            self._recorder.capture(self._run)
            _write(self._state, kept)  # the runs before the capture have moved it
        _write(self._inputs, given)
        if state is not self._state:
            _write(self._state, state)
        self._recorder.replay()
        return self._state, self._info

    def _run(self) -> None:
        moved, info = self._step(self._state, *self._inputs)
        _write(self._state, moved)
        if not self._info:
            self._info = tree_map(_own, info)
        _write(self._info, info)


class TriedStep:
    """`step`, beside it its graph for the first TRIAL steps, and from then on the graph if both agreed."""

    def __init__(self, step: TrainingStep, recorder: Recorder, say: Callable[[str], None]):
        self._step, self._say = step, say
        self._graphed: GraphedStep | None = GraphedStep(step, recorder)
        self._beside: Any = None
        self._tried = 0

    def __call__(self, state: Any, v: Tensor, noise: Any, rates: dict[str, Tensor]) -> tuple[Any, dict[str, Tensor]]:
        if self._graphed is None:
            return self._step(state, v, noise, rates)
        if self._tried == TRIAL:
            return self._graphed(state, v, noise, rates)
        beside = tree_map(_own, state) if self._beside is None else self._beside
        try:
            self._beside, _ = self._graphed(beside, v, noise, rates)
        except (RuntimeError, AssertionError) as error:
            self._give_up(f"the step cannot be captured ({(str(error) or type(error).__name__).splitlines()[0]})")
        state, info = self._step(state, v, noise, rates)
        self._tried += 1
        if self._graphed is not None and self._tried == TRIAL:
            apart = distance(self._beside, state)
            if apart <= TOLERANCE:
                self._say(f"--graphs: captured; {TRIAL} steps equal the plain ones to {apart:.1e}")
            else:
                self._give_up(f"captured and plain steps differ by {apart:.1e}, expected at most {TOLERANCE:.0e}")
            self._beside = None
        return state, info

    def _give_up(self, why: str) -> None:
        self._say(f"--graphs: {why}; going on without")
        self._graphed = None


def distance(found: Any, expected: Any) -> float:
    """The largest difference of two trees of tensors, over each tensor's largest entry; NaN is the largest."""
    worst = 0.0
    for x, y in zip(tree_flatten(found)[0], tree_flatten(expected)[0], strict=True):
        if isinstance(x, Tensor) and y.numel():
            y = y.cpu().double()
            apart = float((x.cpu().double() - y).abs().max() / (y.abs().max() + 1e-12))
            worst = apart if not apart <= worst else worst
    return worst


def _own(x: Any) -> Any:
    return x.clone(memory_format=torch.preserve_format) if isinstance(x, Tensor) else x


def _write(places: Any, values: Any) -> None:
    """Every tensor of `values` into the memory of its place; what is there already stays."""
    targets, spec = tree_flatten(places)
    sources = tree_flatten(values)[0]
    assert len(targets) == len(sources), f"a step gives {len(sources)} tensors, expected {len(targets)}: {spec}"
    groups: dict[Any, tuple[list[Tensor], list[Tensor]]] = {}  # each is one launch
    for target, source in zip(targets, sources, strict=True):
        if isinstance(target, Tensor) and target is not source:
            kind = target.dtype, source.dtype, target.stride() == source.stride()
            group = groups.setdefault(kind, ([], []))
            group[0].append(target)
            group[1].append(source)
    for to, of in groups.values():
        torch._foreach_copy_(to, of)
