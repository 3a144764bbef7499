"""Both dialects of the derivatives give the same numbers, and neither leaks through what it should keep fixed."""

import pytest
import torch

from eblvm.engine.autodiff import derivatives
from eblvm.engine.autodiff.derivatives import grad, vjp


@pytest.fixture(params=["autograd", "torch.func"])
def dialect(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "torch.func":
        monkeypatch.setattr(derivatives, "inside_torch_func", lambda: True)
    return request.param


def test_grad_keeps_everything_else_fixed(dialect: str) -> None:
    theta = torch.tensor(3.0, requires_grad=True)
    x = 2 * theta  # depends on theta, yet d/dx of theta * x^2 must ignore that
    gradient, aux = grad(lambda y: (theta * y**2, y.detach()), x)
    assert gradient.item() == pytest.approx(2 * 3 * 6)
    assert aux.item() == pytest.approx(6)
    # d/dtheta of (2 theta x) at x = 2 theta is 8 theta
    assert torch.autograd.grad(gradient, theta)[0].item() == pytest.approx(24)


def test_grad_of_an_unused_leaf_is_zero(dialect: str) -> None:
    x = {"used": torch.tensor(2.0), "unused": torch.tensor([1.0, 2.0])}
    gradient, _ = grad(lambda y: (y["used"] ** 3, ()), x)
    assert gradient["used"].item() == pytest.approx(12)
    assert gradient["unused"].tolist() == [0, 0]


def test_vjp_is_differentiable_in_cotangent_and_closure(dialect: str) -> None:
    theta = torch.tensor(2.0, requires_grad=True)
    x, u = torch.tensor([1.0, 3.0]), torch.tensor([0.5, 2.0], requires_grad=True)
    y, pull = vjp(lambda v: theta * v**2, x)
    assert y.tolist() == [2, 18]
    pulled = pull(u)
    assert pulled.tolist() == [2.0, 24.0]  # 2 theta x u
    d_theta, d_u = torch.autograd.grad(pulled.sum(), (theta, u))
    assert d_theta.item() == pytest.approx(13)  # sum 2 x u
    assert d_u.tolist() == [4, 12]


def test_vjp_accepts_trees_and_ignores_constant_outputs(dialect: str) -> None:
    x = {"a": torch.tensor(2.0), "b": torch.tensor(5.0)}
    _, pull = vjp(lambda t: (t["a"] * t["b"], torch.tensor(1.0)), x)
    pulled = pull((torch.tensor(1.0), torch.tensor(1.0)))
    assert {k: g.item() for k, g in pulled.items()} == {"a": 5.0, "b": 2.0}


def test_no_graph_where_grad_mode_is_off() -> None:
    theta = torch.tensor(3.0, requires_grad=True)
    with torch.no_grad():
        gradient, _ = grad(lambda y: (theta * y**2, ()), torch.tensor(1.0))
    assert not gradient.requires_grad
