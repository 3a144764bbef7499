"""The pure optimisers against torch's own, and their derivatives where torch's are NaN."""

import pytest
import torch

from eblvm.engine.optim.optimizers import Adam, Sgd


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
