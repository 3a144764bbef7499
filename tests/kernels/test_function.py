"""Functions that start quickly: torch's own derivatives, inside torch.func too, and no context without a graph."""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck

from eblvm.kernels.runtime.dispatch import Function


def cube(base: type) -> type:
    class Cube(base):
        generate_vmap_rule = True
        contexts = 0

        @staticmethod
        def forward(x: Tensor, scale: float) -> Tensor:
            return scale * x**3

        @staticmethod
        def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
            Cube.contexts += 1
            x, ctx.scale = inputs
            ctx.save_for_backward(x)

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> tuple[Tensor, None]:
            (x,) = ctx.saved_tensors
            return 3 * ctx.scale * g * x**2, None

    return Cube


X = torch.tensor([0.5, -1.5, 2.0], dtype=torch.float64)


def test_derivatives() -> None:
    quick, x = cube(Function), X.clone().requires_grad_()
    assert gradcheck(lambda x: quick.apply(x, 2.0), (x,))
    assert gradgradcheck(lambda x: quick.apply(x, 2.0), (x,))


@pytest.mark.parametrize("base", [Function, torch.autograd.Function])
def test_inside_torch_func(base: type) -> None:
    def slope(x: Tensor) -> Tensor:
        return torch.func.grad(lambda y: cube(base).apply(y, 2.0).sum())(x)

    torch.testing.assert_close(slope(X), 6 * X**2)
    torch.testing.assert_close(torch.vmap(slope)(X), 6 * X**2)
    torch.testing.assert_close(torch.func.grad(lambda x: slope(x).sum())(X), 12 * X)


def test_nothing_is_kept_where_nothing_is_tracked() -> None:
    quick, x = cube(Function), X.clone().requires_grad_()
    with torch.no_grad():
        assert not quick.apply(x, 2.0).requires_grad
    assert quick.contexts == 0
    assert quick.apply(x, 2.0).requires_grad
    assert quick.contexts == 1
