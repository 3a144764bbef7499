"""Second derivatives of an autograd Function that is compiled, as a mean over processes would have to be: wrong in
silence. Those of an operator that torch differentiates itself are right."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor


class Half(torch.autograd.Function):
    """x -> x/2: the mean of this process's x and another's zero."""

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return x / 2

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None: ...

    @staticmethod
    def backward(ctx: Any, cotangent: Tensor) -> Tensor:
        return Half.apply(cotangent)


def derivatives(half: Callable[[Tensor], Tensor], x: Tensor) -> tuple[Tensor, Tensor]:
    """Return the gradient of f(x) = sum (half x^3)^2, and that of its squared norm."""
    first = torch.func.grad(lambda y: half(y**3).square().sum())
    return first(x), torch.func.grad(lambda y: first(y).square().sum())(x)


@pytest.mark.filterwarnings("ignore:.*should not be instantiated")  # by the compiler itself
@pytest.mark.parametrize(("half", "second_is_right"), [(lambda x: x / 2, True), (Half.apply, False)])
def test_second_derivatives(half: Callable[[Tensor], Tensor], second_is_right: bool) -> None:
    x = torch.tensor([1.0, 2.0, 3.0])
    expected = 1.5 * x**5, 22.5 * x**9
    torch._dynamo.reset()
    compiled = torch.compile(lambda y: derivatives(half, y), backend="aot_eager", fullgraph=True)
    for found, right in ((derivatives(half, x), True), (compiled(x), second_is_right)):
        torch.testing.assert_close(found[0], expected[0])
        assert torch.allclose(found[1], expected[1]) is right
