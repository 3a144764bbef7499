"""Learning rate schedules."""

import pytest

from eblvm.engine import recipes
from eblvm.engine.config import Config


def factor(config: Config, step: int) -> float:
    return config.optimisation.schedule.factor(step, config.optimisation.steps)


def test_schedules() -> None:
    config = recipes.checkerboard().replaced(steps=100)
    assert [factor(config, s) for s in (0, 50, 99)] == [1, 1, 1]
    cosine = config.replaced(schedule="cosine")
    assert [factor(cosine, s) for s in (0, 50, 100)] == pytest.approx([1, 0.5, 0])
    stepped = config.replaced(schedule="step", decay=0.1, decay_every=30)
    assert [factor(stepped, s) for s in (0, 29, 30, 60)] == pytest.approx([1, 1, 0.1, 0.01])
