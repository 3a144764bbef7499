"""The pure optimisers against torch's own, and their derivatives where torch's are NaN."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from eblvm.engine.optim.adam import Adam, RmsProp
from eblvm.engine.optim.base import Optimizer
from eblvm.engine.optim.sgd import Momentum, Sgd


@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
@pytest.mark.parametrize("way", ["step", "move", "in place"])
def test_adam_follows_torch(way: str, weight_decay: float) -> None:
    adam = Adam((0.9, 0.95), eps_root=0.0, weight_decay=weight_decay)
    follow(adam, lambda p: torch.optim.Adam(p, lr=0.03, betas=(0.9, 0.95), weight_decay=weight_decay), way)


OTHERS = {
    "rmsprop": (RmsProp(0.9, eps_root=0.0), lambda p: torch.optim.RMSprop(p, lr=0.03, alpha=0.9)),
    "sgd": (Momentum(0.8), lambda p: torch.optim.SGD(p, lr=0.03, momentum=0.8)),
}


@pytest.mark.parametrize("way", ["step", "move", "in place"])
@pytest.mark.parametrize("name", OTHERS)
def test_rmsprop_and_momentum_follow_torch(name: str, way: str) -> None:
    follow(*OTHERS[name], way)


def follow(optimizer: Optimizer, torchs: Callable[[list[Tensor]], torch.optim.Optimizer], way: str) -> None:
    """Make 20 steps of either on one function, from zero."""
    target = torch.linspace(-1, 1, 12, dtype=torch.float64).view(3, 4)
    theirs = torch.zeros(3, 4, dtype=torch.float64, requires_grad=True)
    reference, rate = torchs([theirs]), torch.tensor(0.03, dtype=torch.float64)
    ours = optimizer.init({"w": torch.zeros(3, 4, dtype=torch.float64)})
    for _ in range(20):
        before, gradient = ours, {"w": 2 * (ours.params["w"] - target) ** 3}
        if way == "step":
            ours = optimizer.step(ours, gradient, rate)
        else:
            ours, norm = optimizer.move(ours, gradient, rate, in_place=way == "in place")
            assert (ours.params["w"] is before.params["w"]) == (way == "in place")
            torch.testing.assert_close(norm, gradient["w"].norm())
        theirs.grad = 2 * (theirs.detach() - target) ** 3
        reference.step()
    torch.testing.assert_close(ours.params["w"], theirs.detach(), rtol=1e-12, atol=1e-14)
    assert float(ours.moments.step_count) == 20


@pytest.mark.parametrize("optimizer", [RmsProp(), Momentum()], ids=lambda o: type(o).__name__)
def test_replica_axes_of_the_rate_are_those_of_the_parameters(optimizer: Optimizer) -> None:
    """`move` without vmap equals `step` under it, each replica clipped by itself."""
    rates = torch.tensor([0.1, 0.3], dtype=torch.float64)
    params = {"w": torch.arange(6.0, dtype=torch.float64).view(2, 3), "b": torch.ones(2, 1, dtype=torch.float64)}
    grads = {k: p.cos() for k, p in params.items()}
    clipping = replace(optimizer, clip_norm=0.5)
    together, _ = clipping.move(torch.vmap(optimizer.init)(params), grads, rates)
    for r in range(2):
        one = {k: p[r] for k, p in params.items()}
        alone = clipping.step(optimizer.init(one), {k: g[r] for k, g in grads.items()}, rates[r])
        for name, p in alone.params.items():
            torch.testing.assert_close(together.params[name][r], p)


def test_adam_has_a_finite_derivative_at_zero_moments() -> None:
    gradient = torch.zeros(3, requires_grad=True)
    adam = Adam()
    moved = adam.step(adam.init({"w": torch.ones(3)}), {"w": gradient}, torch.tensor(0.1))
    (derivative,) = torch.autograd.grad(moved.params["w"].sum(), gradient)
    assert torch.isfinite(derivative).all()


def test_sgd() -> None:
    start = Sgd().init({"w": torch.ones(2)})
    moved = Sgd().step(start, {"w": torch.tensor([1.0, -1.0])}, torch.tensor(0.5))
    assert moved.params["w"].tolist() == [0.5, 1.5]
    assert moved.moments == ({}, {}, 1)


@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("optimizer", [Adam(), RmsProp(), Momentum(), Sgd()], ids=lambda o: type(o).__name__)
def test_move_keeps_the_average(optimizer: Optimizer, in_place: bool) -> None:
    weights = optimizer.init({"w": torch.ones(3)})._replace(average={"w": torch.full((3,), 2.0)})
    rate, gradient = torch.tensor(0.1), {"w": torch.tensor([1.0, -1.0, 0.5])}
    still, _ = optimizer.move(weights, gradient, rate)
    assert torch.equal(still.average["w"], torch.full((3,), 2.0))
    moved, _ = replace(optimizer, average=0.75).move(weights, gradient, rate, in_place=in_place)
    torch.testing.assert_close(moved.average["w"], 0.75 * 2 + 0.25 * moved.params["w"])
    assert (moved.average["w"] is weights.average["w"]) == in_place


@pytest.mark.parametrize("optimizer", [Adam(average=0.5), RmsProp(average=0.5)], ids=lambda o: type(o).__name__)
def test_nothing_moves_where_it_must_not_go(optimizer: Optimizer) -> None:
    weights = optimizer.init({"w": torch.ones(3)})._replace(average={"w": torch.zeros(3)})
    for go in (False, True):
        after, _ = optimizer.move(weights, {"w": torch.ones(3)}, torch.tensor(0.1), go=torch.tensor(go))
        assert torch.equal(after.params["w"], torch.ones(3)) != go
        assert (float(after.average["w"].sum()) == float(after.moments.step_count) == 0) != go
