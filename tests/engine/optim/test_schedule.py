"""Learning rate schedules."""

import pytest
import torch

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


def test_cosine_to_a_final_rate_follows_torch() -> None:
    """theta's and phi's rates, each of its own size, against CosineAnnealingLR with eta_min."""
    steps, final = 12, 1e-6
    config = recipes.checkerboard().replaced(steps=steps, schedule="cosine", final_lr=final, lr=(5e-5,))
    weights = [torch.zeros(1, requires_grad=True) for _ in range(2)]
    groups = [{"params": [w], "lr": lr} for w, lr in zip(weights, (5e-5, 2e-3), strict=True)]
    optimizer = torch.optim.SGD(groups)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps, eta_min=final)
    for step in range(steps):
        rates = config.optimisation.rates(step, {"phi": 2e-3}, torch.zeros((), dtype=torch.float64))
        expected = [group["lr"] for group in optimizer.param_groups]
        assert [float(rates[name]) for name in ("theta", "phi")] == pytest.approx(expected, rel=1e-9)
        optimizer.step()
        schedule.step()
    assert config.optimisation.schedule.rate(5e-5, steps, steps) == pytest.approx(final)
