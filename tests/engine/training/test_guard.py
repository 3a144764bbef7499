"""The guard: what it looks at, and when it stops a run."""

import math

import pytest
import torch

from eblvm.engine import recipes
from eblvm.engine.errors import DivergedError
from eblvm.engine.training import guard
from eblvm.engine.training.guard import sizes, watched
from eblvm.engine.training.start import initial_state


def state():
    config = recipes.recipe("digits", method="bidsm")
    v = torch.rand(4, 64)
    return initial_state(config, config.method.nets(config, v), torch.tensor(0), v)


@pytest.mark.parametrize("part", ["theta", "phi", "moments"])
def test_a_nan_anywhere_in_the_state_stops_the_run(part: str) -> None:
    broken = state()
    parts = watched(broken)
    assert set(parts) == {"theta", "phi", "moments"}
    next(iter(parts[part].values())).view(-1)[1] = math.nan
    with pytest.raises(DivergedError, match=rf"stopped at step 7: {part} is nan; the checkpoint of step 5 is kept"):
        guard.check(7, sizes(broken, replicated=False), lambda: 5)


def test_large_moments_are_healthy_and_infinite_ones_are_not() -> None:
    guard.check(1, {"moments": [1e20], "phi": [1.0]})
    with pytest.raises(DivergedError, match="moments is inf"):
        guard.check(1, {"moments": [math.inf]})
    with pytest.raises(DivergedError, match=r"phi is 1000000000000\.0"):
        guard.check(1, {"phi": [1e12]})
