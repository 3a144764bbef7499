"""`--graphs`: a training step captured once as a CUDA graph and replayed, so that the host launches one thing per step.

A replay runs the same kernels on the same addresses. So everything that changes from step to step lies in tensors made
once: the batch, the noise and the rates are copied into them before a replay, and the state is copied back into its
own memory at the end of the captured step. What a step may not do inside is what the rehearsal of the tests forbids
anyway: wait for the device, copy from the host, or branch on a value. Means over processes are kernels as well: NCCL's
are captured with the rest, by every process at the same time.

Before it is trusted, a captured step repeats the first three: from the states of the plain ones it must reach theirs,
else the plain step goes on, and one line says why. The plain steps come first and their states wait in the host's
memory, so that a GPU never holds the activations of both. All processes agree on the outcome.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_map

from eblvm.engine.autodiff import collectives
from eblvm.engine.errors import WithoutGraphsError, reason
from eblvm.engine.methods.base import Info, Noise, Rates, State, TrainingStep
from eblvm.engine.training import distributed
from eblvm.engine.training.capture import Recorder, UnusableDeviceError

T = TypeVar("T")

TRIAL = 3
# Of norms: first moments, which are linear in the gradient, buffers, what is logged. A replay may choose other
# algorithms than the plain step; what is wrong with a graph, such as noise that does not change, differs by about 1.
TOLERANCES = {"fp32": 1e-4, "tf32": 1e-3, "bf16": 5e-2, "fp16": 5e-2}
MOVE_TOLERANCE = 0.5  # of the move of the parameters: Adam moves one without a gradient by the sign of its rounding


class NotCapturedError(Exception):
    """A reason why the step is not replayed. Plain steps go on."""


class GraphedStep:
    """`step` with its inputs and its state in memory that never moves. What it returns lives there, until the next."""

    def __init__(self, step: TrainingStep, recorder: Recorder):
        self._step, self._recorder = step, recorder
        self._inputs: Any = None
        self._state: Any = None
        self._info: Info = {}

    def prepare(self, state: State, *given: Any) -> None:
        """Allocate the memory of a state, and of the batch, the noise and the rates `given`."""
        self._inputs, self._state = tree_map(_own, given), tree_map(_own, state)

    def warm_up(self) -> None:
        self._recorder.warm_up(self._run)

    def capture(self) -> None:
        self._recorder.capture(self._run)

    def load(self, state: State, *given: Any) -> None:
        _write(self._inputs, given)
        if state is not self._state:
            _write(self._state, state)

    def load_copies(self, taken: tuple[Any, ...], device: torch.device) -> None:
        self.load(*_copied(taken, device))

    def replay(self) -> tuple[State, Info]:
        self._recorder.replay()
        return self._state, self._info

    def __call__(self, state: State, v: Tensor, noise: Noise, rates: Rates) -> tuple[State, Info]:
        if self._inputs is None:
            self.prepare(state, v, noise, rates)
            self.warm_up()
            self.capture()
        self.load(state, v, noise, rates)
        return self.replay()

    def _run(self) -> None:
        moved, info = self._step(self._state, *self._inputs)
        _write(self._state, moved)
        if not self._info:
            self._info = tree_map(_own, info)
        _write(self._info, info)


class TriedStep:
    """`step` for the first TRIAL steps, and from then on its graph if that repeats them."""

    def __init__(self, step: TrainingStep, recorder: Recorder, say: Callable[[str], None], precision: str = "fp32"):
        self._step, self._say, self._tolerance = step, say, TOLERANCES[precision]
        self._recorder: Recorder | None = recorder
        self._graphed: GraphedStep | None = None
        self._taken: list[tuple[State, Any]] = []  # on the host: states, and what was given to them

    def __call__(self, state: State, v: Tensor, noise: Noise, rates: Rates) -> tuple[State, Info]:
        given = (v, noise, rates)
        if self._graphed is not None:
            try:
                return self._graphed(state, *given)
            except NotCapturedError as error:  # raised before anything has moved
                self._give_up(error)
        if self._recorder is None:
            return self._step(state, *given)
        self._taken.append(_copied((state, given), "cpu"))
        state, info = self._step(state, *given)
        if len(self._taken) == TRIAL:
            try:
                self._graphed = self._tried(self._recorder, state, given, info)
            except NotCapturedError as error:
                self._give_up(error)
            self._recorder, self._taken = None, []
        return state, info

    def _tried(self, recorder: Recorder, state: State, given: Any, info: Info) -> GraphedStep:
        """Return the graph that has repeated the steps taken, of which the last led to `state` and `info`."""
        graphed, off = GraphedStep(self._step, recorder), 0.0
        together(partial(graphed.prepare, state, *given))
        together(graphed.warm_up, has_collectives=True)
        together(graphed.capture)
        after = [start for start, _ in self._taken[1:]] + [_copied(state, "cpu")]
        device = next(x.device for x in tree_flatten(state)[0])
        for (start, inputs), expected in zip(self._taken, after, strict=True):
            together(partial(graphed.load_copies, (start, *inputs), device))
            found, logged = together(graphed.replay, has_collectives=True)
            off = max(off, difference(found, expected, start))
        off = max(off, _apart(logged, info))

        def agree() -> None:
            if off > self._tolerance:
                expected = f"expected at most {self._tolerance:.0e}"
                raise NotCapturedError(f"captured and plain steps differ by {off:.1e}, {expected}")

        together(agree)
        self._say(f"--graphs: captured; {TRIAL} steps equal the plain ones to {off:.1e}")
        return graphed

    def _give_up(self, why: NotCapturedError) -> None:
        self._say(f"--graphs: {why}; going on without")
        self._graphed = None


def together(phase: Callable[[], T], has_collectives: bool = False) -> T:
    """Run a phase on every process. If it fails on one it has failed on all: each raises the same.

    A process that fails between collectives leaves the others with one that never ends, and a lost GPU runs nothing:
    then only new processes can go on."""
    result: Any = None
    problem: tuple[bool, str] | None = None
    try:
        result = phase()
    except NotCapturedError as error:
        problem = False, str(error)
    except Exception as error:  # of any library that a step calls
        ends = isinstance(error, UnusableDeviceError) or (has_collectives and collectives.size() > 1)
        problem = ends, f"the step cannot be captured ({reason(error)})"
    problems = [
        (ends, sentence if rank == 0 else f"rank {rank}: {sentence}")
        for rank, (ends, sentence) in ((r, p) for r, p in enumerate(distributed.everyones(problem)) if p is not None)
    ]
    if problems:
        ends, sentence = max(problems, key=lambda p: p[0])
        raise WithoutGraphsError(sentence) if ends else NotCapturedError(sentence)
    return result


def difference(found: State, expected: State, before: State) -> float:
    """Return how far a step's result is from another's, over the size of that; infinity if one of them has a NaN."""
    worst = max(_apart(*pair) for pair in zip(found[2:], expected[2:], strict=True))  # all but the weights
    for x, y, start in zip(found[:2], expected[:2], before[:2], strict=True):
        if not y.moments.m:
            worst = max(worst, _apart(x.params, y.params))
            continue
        off, move = _norm(_differences(x.params, y.params)), _norm(_differences(y.params, start.params))
        of_move = 0.0 if off <= MOVE_TOLERANCE * move else off / (move or off)
        worst = max(worst, of_move, _apart(x.moments.m, y.moments.m))
    return worst


def _apart(found: Any, expected: Any) -> float:
    finite = [x.double().nan_to_num(0.0, 0.0, 0.0) for x in tree_flatten(expected)[0]]
    off, size = _norm(_differences(found, expected)), _norm(finite)
    return off / (size or off) if off else 0.0


def _differences(found: Any, expected: Any) -> list[Tensor]:
    """Return x - y of the tensors of two trees: 0 where both are the same, NaN included, infinity where one is NaN."""
    pairs = zip(tree_flatten(found)[0], tree_flatten(expected)[0], strict=True)
    hosts = [(x.cpu().double(), y.cpu().double()) for x, y in pairs if isinstance(x, Tensor)]
    return [
        torch.where((x == y) | (x.isnan() & y.isnan()), 0.0, x - y).nan_to_num(nan=math.inf, posinf=math.inf)
        for x, y in hosts
    ]


def _norm(tensors: list[Tensor]) -> float:
    return math.sqrt(sum(float(x.square().sum()) for x in tensors))


def distance(found: Any, expected: Any) -> float:
    """The largest difference of two trees of tensors, over each tensor's largest entry; NaN is the largest."""
    worst = 0.0
    for x, y in zip(tree_flatten(found)[0], tree_flatten(expected)[0], strict=True):
        if isinstance(x, Tensor) and y.numel():
            y = y.cpu().double()
            apart = float((x.cpu().double() - y).abs().max() / (y.abs().max() + 1e-12))
            worst = apart if not apart <= worst else worst
    return worst


def _copied(tree: Any, device: torch.device | str) -> Any:
    return tree_map(lambda x: x.detach().to(device, copy=True) if isinstance(x, Tensor) else x, tree)


def _own(x: Any) -> Any:
    return x.clone(memory_format=torch.preserve_format) if isinstance(x, Tensor) else x


def _write(places: Any, values: Any) -> None:
    """Every tensor of `values` into the memory of its place; what is there already stays."""
    targets, spec = tree_flatten(places)
    sources = tree_flatten(values)[0]
    assert len(targets) == len(sources), f"a step gives {len(sources)} tensors, expected {len(targets)}: {spec}"
    groups: dict[Any, tuple[list[Tensor], list[Tensor]]] = {}  # each is one launch
    for target, source in zip(targets, sources, strict=True):
        if not isinstance(target, Tensor):
            if target != source:
                raise NotCapturedError(f"the host gives a step {source!r} where it gave {target!r} before")
        elif target is not source:
            kind = target.dtype, source.dtype, target.stride() == source.stride()
            group = groups.setdefault(kind, ([], []))
            group[0].append(target)
            group[1].append(source)
    for to, of in groups.values():
        torch._foreach_copy_(to, of)
