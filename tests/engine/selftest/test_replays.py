"""Graphs against plain steps: a stand-in for CUDA's graphs that runs the step again passes, one that goes wrong does
not."""

from collections.abc import Callable
from typing import Any

import pytest
from torch import Tensor

from eblvm.engine.selftest import replays
from eblvm.engine.selftest.finding import run
from eblvm.engine.training.graphs import GraphedStep
from tests.engine.selftest.planted import in_theta, planted


class Replayed:
    """Runs the step again where a graph would replay it."""

    def warm_up(self, step: Callable[[], None]) -> None:
        step()

    def capture(self, step: Callable[[], None]) -> None:
        self.step = step
        step()

    def replay(self) -> None:
        self.step()

    def usable(self) -> bool:
        return True


class Once(Replayed):
    """Replays nothing: what a graph does whose memory is not the one that is read."""

    def replay(self) -> None:
        pass


def test_right_replays_pass() -> None:
    found = list(run(replays.replays("cpu", Replayed)))
    assert [f for f in found if not f.passed] == []
    assert {f.check for f in found} >= {"graph of grbm bidsm", "graph of grbm bidsm replicas", "graph of deep bimdsm"}


def test_a_graph_that_does_nothing_is_found() -> None:
    assert not any(f.passed for f in run(replays.replays("cpu", Once)))


def test_inputs_of_the_first_step_in_all_of_them_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The noise of a step has to be copied into the graph's memory."""
    own = GraphedStep.__call__

    def stale(self: Any, state: Any, v: Tensor, noise: Any, rates: Any) -> Any:
        kept = self.__dict__.setdefault("kept", (v.clone(), noise, rates))
        return own(self, state, *kept)

    monkeypatch.setattr(GraphedStep, "__call__", stale)
    assert not any(f.passed for f in run(replays.replays("cpu", Replayed)))


@pytest.mark.parametrize("factor", [-1.0, 1.05])
@pytest.mark.parametrize("case", list(replays.cases()), ids=lambda case: case.name)
def test_a_wrong_gradient_in_the_graph_is_found(case: Any, factor: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second of both trials has a step with a fault."""
    made: list[Any] = []

    def trial(*given: Any) -> Any:
        if not made:
            made.append(replays_trial(*given))
            return made[0]
        with planted(in_theta, factor):
            return replays_trial(*given)

    replays_trial = replays.Trial
    monkeypatch.setattr(replays, "Trial", trial)
    found = replays.replayed(case, "cpu", Replayed)
    assert found.bound is not None
    assert found.figure > found.bound
