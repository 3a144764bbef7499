"""A captured step by a stand-in for CUDA's graphs on the CPU: every replay at the same addresses, no host value."""

import math
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from eblvm.engine.config import Config, Running
from eblvm.engine.errors import UserError, WithoutGraphsError
from eblvm.engine.methods.base import Rows, State, empty_weights
from eblvm.engine.optim.base import Moments, Weights
from eblvm.engine.recipes import recipe
from eblvm.engine.training import loop
from eblvm.engine.training.capture import UnusableDeviceError
from eblvm.engine.training.graphs import TRIAL, GraphedStep, TriedStep, _write, difference
from eblvm.engine.training.start import initial_state
from eblvm.kernels.philox import Key

CASES = {
    "grbm bidsm": recipe("digits").replaced(latent=5, batch=6, N=2, K=2, schedule="cosine"),
    "grbm bidsm plain": recipe("digits").replaced(latent=5, batch=6, N=2, K=2, fused=False),
    "grbm dsm": recipe("digits", method="dsm").replaced(latent=5, batch=6, ema=0.9, clip_norm=1.0),
    "grbm pcd": recipe("digits", method="pcd").replaced(latent=5, batch=6),
}


class Replayed:
    """Runs the step again where a graph would replay it."""

    def __init__(self) -> None:
        self.run: Callable[[], None] | None = None

    def warm_up(self, run: Callable[[], None]) -> None:
        run()

    def capture(self, run: Callable[[], None]) -> None:
        self.run = run
        run()

    def replay(self) -> None:
        assert self.run is not None
        self.run()


def drive(config: Config, wrap: Callable[[Any], Any], steps: int = 6) -> tuple[Any, list[Any]]:
    """The states after `steps`, and the addresses of each."""
    v = torch.rand(config["batch"], 64, generator=torch.Generator().manual_seed(0))
    seed = config.optimisation.seeds()
    method, nets = config.method, config.method.nets(config, v)
    state: Any = initial_state(config, nets, seed, v)
    step, places = wrap(config.step.of(config, nets)), []
    for i in range(steps):
        noise = method.draw(nets, Key(seed, i), Rows.of(Key(seed, i), v))
        rates = config.optimisation.rates(i, method.rates(), v)
        state, _ = step(state, v, noise, rates)
        places.append([t.data_ptr() for t in tree_leaves(state) if isinstance(t, Tensor)])
    return tree_map(lambda t: t.clone() if isinstance(t, Tensor) else t, state), places


@pytest.mark.parametrize("name", CASES)
def test_replays_are_the_plain_steps_in_memory_that_stays(name: str) -> None:
    expected, _ = drive(CASES[name], lambda step: step)
    found, places = drive(CASES[name], lambda step: GraphedStep(step, Replayed()))
    assert all(p == places[0] for p in places)
    for x, y in zip(tree_leaves(found), tree_leaves(expected), strict=True):
        assert torch.equal(x, y)


def test_a_compiled_step_is_captured(monkeypatch: pytest.MonkeyPatch) -> None:
    """--compile --graphs: the graph is of the compiled step, which is compiled once and not for each of its callers."""
    compiled: list[Any] = []

    def backend(graph: Any, _: Any) -> Any:
        compiled.append(graph)
        return graph.forward

    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend=backend))
    torch._dynamo.reset()
    config, said = CASES["grbm dsm"].replaced(compile=True), list[str]()
    expected, _ = drive(config.replaced(compile=False, fused=False), lambda step: step)
    found, places = drive(config, lambda step: TriedStep(step, Replayed(), said.append))
    assert "3 steps equal the plain ones" in said[0]
    assert places[TRIAL + 1] == places[TRIAL]
    assert len(compiled) == 1
    for x, y in zip(tree_leaves(found), tree_leaves(expected), strict=True):
        torch.testing.assert_close(x, y)


def test_a_run_captures_its_compiled_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`train` with both flags; the step of `Step.of` is what is tried, and 6 steps are the run's."""
    given: list[Any] = []

    class Tried(TriedStep):
        def __init__(self, step: Any, recorder: Any, say: Any, precision: str):
            given.append(step)
            super().__init__(step, Replayed(), say, precision)

    monkeypatch.setattr(loop, "TriedStep", Tried)
    monkeypatch.setattr(loop, "CudaRecorder", Replayed)
    monkeypatch.setattr(Running, "on_cuda", property(lambda _: True))
    monkeypatch.setattr(loop.machine, "set_repeatable", lambda _: None)
    monkeypatch.setattr(torch, "compile", lambda step, dynamic: partial(step))
    said: list[str] = []
    config = CASES["grbm dsm"].replaced(steps=6, validations=0, compile=True, graphs=True)
    assert loop.train(config, tmp_path / "run", said.append)
    assert isinstance(given[0], partial)
    assert "3 steps equal the plain ones" in said[-1]


def test_what_changes_is_written_by_few_launches() -> None:
    """One for all tensors of a dtype and memory order."""
    state = {str(i): torch.rand(3, 4) for i in range(20)} | {"count": torch.tensor(1), "image": torch.rand(2, 3, 4, 4)}
    rows = {k: t.contiguous(memory_format=torch.channels_last) if t.dim() == 4 else t for k, t in state.items()}
    place = tree_map(torch.zeros_like, state)
    with Counted() as counted:
        _write(place, rows)
    assert counted.names == ["_foreach_copy_"] * 3
    assert all(torch.equal(place[k], t) for k, t in state.items())


class Counted(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(func._schema.name.split("::")[1])
        return func(*args, **(kwargs or {}))


def test_a_graph_is_tried_before_it_is_trusted() -> None:
    said: list[str] = []
    expected, _ = drive(CASES["grbm bidsm"], lambda step: step)
    found, places = drive(CASES["grbm bidsm"], lambda step: TriedStep(step, Replayed(), said.append))
    assert all(torch.equal(x, y) for x, y in zip(tree_leaves(found), tree_leaves(expected), strict=True))
    assert "3 steps equal the plain ones" in said[0]
    assert places[TRIAL + 1] == places[TRIAL]


class Frozen(Replayed):
    """A graph whose replays forget what a host value has become: they do nothing."""

    def replay(self) -> None: ...


class Stale(Replayed):
    """A graph of a step that reads the first noise again and again."""

    def capture(self, run: Callable[[], None]) -> None:
        graphed = run.__self__  # type: ignore[attr-defined]
        step, first = graphed._step, tree_map(torch.clone, graphed._inputs[1])
        graphed._step = lambda state, v, noise, rates: step(state, v, first, rates)
        self.run = run


class Refused(Replayed):
    """A recorder that fails at one of its points."""

    def __init__(self, point: str, error: Exception):
        super().__init__()
        self.point, self.error = point, error

    def warm_up(self, run: Callable[[], None]) -> None:
        self.at("warm-up")

    def capture(self, run: Callable[[], None]) -> None:
        self.at("capture")

    def replay(self) -> None:
        self.at("replay")

    def at(self, point: str) -> None:
        if point == self.point:
            raise self.error


CUDA_ERROR = RuntimeError("operation not permitted when stream is capturing\nmore")


@pytest.mark.parametrize(
    ("recorder", "sentence"),
    [
        (Frozen(), "differ by"),
        (Stale(), "differ by"),
        (Refused("warm-up", torch.OutOfMemoryError("CUDA out of memory")), "captured (CUDA out of memory)"),
        (Refused("capture", CUDA_ERROR), "captured (operation not permitted when stream is capturing)"),
        (Refused("capture", ValueError("no such kernel")), "captured (no such kernel)"),
        (Refused("replay", RuntimeError("CUDA error: out of memory")), "captured (CUDA error: out of memory)"),
    ],
)
def test_a_graph_that_fails_is_left_with_one_line(recorder: Replayed, sentence: str) -> None:
    said: list[str] = []
    expected, _ = drive(CASES["grbm dsm"], lambda step: step)
    found, _ = drive(CASES["grbm dsm"], lambda step: TriedStep(step, recorder, said.append))
    assert all(torch.equal(x, y) for x, y in zip(tree_leaves(found), tree_leaves(expected), strict=True))
    assert len(said) == 1
    assert sentence in said[0]
    assert "going on without" in said[0]


def test_a_lost_gpu_ends_the_process_with_what_to_do() -> None:
    recorder = Refused("capture", UnusableDeviceError("CUDA error: an illegal memory access was encountered"))
    with pytest.raises(WithoutGraphsError, match=r"illegal memory access.*use graphs=False \(--no-graphs\)"):
        drive(CASES["grbm dsm"], lambda step: TriedStep(step, recorder, print))


@pytest.mark.parametrize("changed_at", [2, 5])
def test_a_number_of_the_host_that_changes_is_not_replayed(changed_at: int) -> None:
    """A graph has the number that it was captured with: found in the trial, and later before anything moves."""

    def numbered(step: Any) -> Any:
        tried, count = TriedStep(lambda s, v, noise, rates: step(s, v, noise["own"], rates), Replayed(), said.append), 0

        def run(state: Any, v: Tensor, noise: Any, rates: Any) -> Any:
            nonlocal count
            count += 1
            return tried(state, v, {"own": noise, "level": int(count > changed_at)}, rates)

        return run

    said: list[str] = []
    expected, _ = drive(CASES["grbm dsm"], lambda step: step, steps=8)
    found, _ = drive(CASES["grbm dsm"], numbered, steps=8)
    assert all(torch.equal(x, y) for x, y in zip(tree_leaves(found), tree_leaves(expected), strict=True))
    assert "it gave 0 before; going on without" in said[-1] or "it gave 1 before; going on without" in said[-1]


def weights(m: list[float], params: list[float]) -> Weights:
    of = torch.tensor
    return Weights({"w": of(params), "b": of(0.0)}, Moments({"w": of(m)}, {"w": of(m).square()}, of(1.0)))


def state_of(m: list[float], params: list[float], **rest: Any) -> State:
    return State(weights(m, params), empty_weights(), **rest)


def test_the_difference_is_of_the_gradient_not_of_the_signs_of_rounding() -> None:
    many, other = [1.0] * 9, [-0.1] * 9  # the tenth has no gradient, and Adam moves it by the sign of its rounding
    expected = state_of([*many, 1e-9], [*other, -0.1])
    found = state_of([*many, -1e-9], [*other, 0.1])
    start = state_of([0.0] * 10, [0.0] * 10)
    assert difference(found, expected, start) > 0.5  # a tenth of the parameters is too many
    many, other, start = many * 10, other * 10, state_of([0.0] * 91, [0.0] * 91)
    expected, found = state_of([*many, 1e-9], [*other, -0.1]), state_of([*many, -1e-9], [*other, 0.1])
    assert difference(found, expected, start) < 1e-8


@pytest.mark.parametrize(
    "wrong",
    [
        state_of([-1.0, 0.5], [-0.1, -0.1]),  # a negated gradient
        state_of([1.0, 0.55], [-0.1, -0.1]),  # a part of it off by 5 % of the whole
        state_of([1.0, 0.5], [0.0, 0.0]),  # parameters that have not moved
        state_of([1.0, math.nan], [-0.1, -0.1]),
        state_of([1.0, 0.5], [-0.1, -0.1], buffers={"mean": torch.tensor(2.0)}),
    ],
)
def test_the_difference_of_wrong_states(wrong: State) -> None:
    expected = state_of([1.0, 0.5], [-0.1, -0.1], buffers={"mean": torch.tensor(1.0)})
    wrong = wrong._replace(buffers=wrong.buffers or expected.buffers)
    assert difference(wrong, expected, state_of([0.0, 0.0], [0.0, 0.0])) > 1e-2


def test_what_is_not_a_number_in_both_is_equal() -> None:
    """A third of the noise levels without a sample has no mean to log."""
    state = state_of([1.0, math.nan], [-0.1, -0.1])
    assert difference(state, state, state_of([0.0, 0.0], [0.0, 0.0])) == 0


def test_graphs_of_steps_that_wait_are_refused() -> None:
    config = recipe("cifar10", method="bidvl").replaced(precision="fp16", device="cuda", graphs=True)
    with pytest.raises(UserError, match=r"cannot wait for the GPU, and bidvl asks .* fp16 is finite; remove --graphs"):
        config.check()


def test_graphs_need_a_gpu() -> None:
    with pytest.raises(UserError, match="add --device cuda"):
        recipe("digits").replaced(graphs=True).check()
