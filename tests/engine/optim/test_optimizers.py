"""The pure optimisers against torch's own, and their derivatives where torch's are NaN."""

import pytest
import torch

from eblvm.engine.optim.adam import Adam
from eblvm.engine.optim.base import Optimizer
from eblvm.engine.optim.rmsprop import RmsProp
from eblvm.engine.optim.sgd import Momentum, Sgd


@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
@pytest.mark.parametrize("way", ["step", "move", "in place"])
def test_adam_follows_torch(way: str, weight_decay: float) -> None:
    target = torch.linspace(-1, 1, 12, dtype=torch.float64).view(3, 4)
    ours = {"w": torch.zeros(3, 4, dtype=torch.float64)}
    theirs = torch.zeros(3, 4, dtype=torch.float64, requires_grad=True)
    adam = Adam((0.9, 0.95), eps_root=0.0, weight_decay=weight_decay)
    state, rate = adam.init(ours), torch.tensor(0.03, dtype=torch.float64)
    reference = torch.optim.Adam([theirs], lr=0.03, betas=(0.9, 0.95), weight_decay=weight_decay)
    for _ in range(20):
        gradient = 2 * (ours["w"] - target) ** 3
        if way == "step":
            ours, state = adam.step(ours, {"w": gradient}, state, rate)
        else:
            before = ours["w"]
            ours, state, _ = adam.move(ours, {"w": gradient}, state, rate, in_place=way == "in place")
            assert (ours["w"] is before) == (way == "in place")
        theirs.grad = 2 * (theirs.detach() - target) ** 3
        reference.step()
    torch.testing.assert_close(ours["w"], theirs.detach(), rtol=1e-12, atol=1e-14)


OTHERS = {
    "rmsprop": (RmsProp(0.9, eps_root=0.0), lambda p: torch.optim.RMSprop(p, lr=0.03, alpha=0.9)),
    "sgd": (Momentum(0.8), lambda p: torch.optim.SGD(p, lr=0.03, momentum=0.8)),
}


@pytest.mark.parametrize("way", ["step", "move", "in place"])
@pytest.mark.parametrize("name", OTHERS)
def test_rmsprop_and_momentum_follow_torch(name: str, way: str) -> None:
    target = torch.linspace(-1, 1, 12, dtype=torch.float64).view(3, 4)
    ours = {"w": torch.zeros(3, 4, dtype=torch.float64)}
    theirs = torch.zeros(3, 4, dtype=torch.float64, requires_grad=True)
    optimizer, reference = OTHERS[name][0], OTHERS[name][1]([theirs])
    state, rate = optimizer.init(ours), torch.tensor(0.03, dtype=torch.float64)
    for _ in range(20):
        gradient = {"w": 2 * (ours["w"] - target) ** 3}
        if way == "step":
            ours, state = optimizer.step(ours, gradient, state, rate)
        else:
            before = ours["w"]
            ours, state, norm = optimizer.move(ours, gradient, state, rate, in_place=way == "in place")
            assert (ours["w"] is before) == (way == "in place")
            torch.testing.assert_close(norm, gradient["w"].norm())
        theirs.grad = 2 * (theirs.detach() - target) ** 3
        reference.step()
    torch.testing.assert_close(ours["w"], theirs.detach(), rtol=1e-12, atol=1e-14)
    assert float(state.step_count) == 20


@pytest.mark.parametrize("optimizer", [RmsProp(), Momentum()], ids=lambda o: type(o).__name__)
def test_replica_axes_of_the_rate_are_those_of_the_parameters(optimizer: Optimizer) -> None:
    """`move` without vmap equals `step` under it, each replica clipped by itself."""
    rates = torch.tensor([0.1, 0.3], dtype=torch.float64)
    params = {"w": torch.arange(6.0, dtype=torch.float64).view(2, 3), "b": torch.ones(2, 1, dtype=torch.float64)}
    grads = {k: p.cos() for k, p in params.items()}
    state = torch.vmap(optimizer.init)(params)
    together, *_ = optimizer.move(params, grads, state, rates, clip_norm=0.5)
    for r in range(2):
        one = {k: p[r] for k, p in params.items()}
        alone, *_ = optimizer.move(one, {k: g[r] for k, g in grads.items()}, optimizer.init(one), rates[r], False, 0.5)
        for name, p in alone.items():
            torch.testing.assert_close(together[name][r], p)


def test_adam_has_a_finite_derivative_at_zero_moments() -> None:
    gradient = torch.zeros(3, requires_grad=True)
    adam = Adam()
    params = {"w": torch.ones(3)}
    moved, _ = adam.step(params, {"w": gradient}, adam.init(params), torch.tensor(0.1))
    (derivative,) = torch.autograd.grad(moved["w"].sum(), gradient)
    assert torch.isfinite(derivative).all()


def test_sgd() -> None:
    moved, state = Sgd().step({"w": torch.ones(2)}, {"w": torch.tensor([1.0, -1.0])}, (), torch.tensor(0.5))
    assert moved["w"].tolist() == [0.5, 1.5]
    assert state == ()
