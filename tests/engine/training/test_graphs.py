"""A captured step by a stand-in for CUDA's graphs on the CPU: every replay at the same addresses, no host value."""

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
from eblvm.engine.errors import UserError
from eblvm.engine.methods.base import Rows
from eblvm.engine.recipes import recipe
from eblvm.engine.training import loop
from eblvm.engine.training.graphs import TRIAL, GraphedStep, TriedStep, _write
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
        def __init__(self, step: Any, recorder: Any, say: Any):
            given.append(step)
            super().__init__(step, Replayed(), say)

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


class Refused(Replayed):
    def capture(self, run: Callable[[], None]) -> None:
        raise RuntimeError("operation not permitted when stream is capturing\nmore")


@pytest.mark.parametrize(("recorder", "sentence"), [(Frozen(), "differ by"), (Refused(), "cannot be captured")])
def test_a_graph_that_fails_is_left_with_one_line(recorder: Replayed, sentence: str) -> None:
    said: list[str] = []
    expected, _ = drive(CASES["grbm dsm"], lambda step: step)
    found, _ = drive(CASES["grbm dsm"], lambda step: TriedStep(step, recorder, said.append))
    assert all(torch.equal(x, y) for x, y in zip(tree_leaves(found), tree_leaves(expected), strict=True))
    assert len(said) == 1
    assert sentence in said[0]
    assert "going on without" in said[0]


def test_graphs_need_a_gpu() -> None:
    with pytest.raises(UserError, match="add --device cuda"):
        recipe("digits").replaced(graphs=True).check()
