"""A chain of two residual sums as in a deep energy, by the op and by torch's own derivatives of the definition."""

from collections.abc import Callable

import torch
from torch import Tensor

from eblvm.kernels import elu_of_sum as package
from eblvm.kernels.elu_of_sum import reference
from tests.kernels import comparison

SIZES = [(1, 1, 1, 1), (2, 3, 5, 4), (3, 7, 9, 11), (0, 2, 3, 3), (4, 100), (1, 33, 6, 6)]
TOLERANCE = {torch.float64: 1e-12, torch.float32: 1e-5}
Op = Callable[[Tensor, Tensor | None, Tensor | None], tuple[Tensor, Tensor]]


def inputs(size: tuple[int, ...], dtype: torch.dtype = torch.float64) -> list[Tensor]:
    """x, a residual, a bias, and a cotangent."""
    generator = torch.Generator().manual_seed(sum(size))
    shapes = size, size, size[1:2], size
    return [torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype) for shape in shapes]


def by(backend: object) -> Op:
    return lambda *given: package._Value.apply(backend, *given, given[0].dtype)[:2]


def chain(op: Op, x: Tensor, residual: Tensor | None, bias: Tensor | None) -> Tensor:
    """Two sums, each kept and activated, as in two residual blocks."""
    s, y = op(x, residual, bias)
    t, z = op(0.7 * y, s, bias)
    return (t * 0.5 + 0.1 * z * z).sin()


def derivatives(op: Op, x: Tensor, residual: Tensor | None, bias: Tensor | None, g: Tensor) -> list[Tensor]:
    """The value, the score for x, and the gradients of a loss of the score and the value for all inputs."""
    given = [None if t is None else t.detach().requires_grad_() for t in (x, residual, bias)]
    out = chain(op, *given)
    (score,) = torch.autograd.grad(out, given[0], g, create_graph=True)
    known = [t for t in given if t is not None]
    loss = (score.square() * g).sum() + out.square().sum()
    return [out.detach(), score.detach(), *torch.autograd.grad(loss, known)]


def expected(x: Tensor, residual: Tensor | None, bias: Tensor | None, g: Tensor) -> list[Tensor]:
    wide = [None if t is None else t.double() for t in (x, residual, bias, g)]
    return derivatives(reference.value, *wide)


def assert_close(got: list[Tensor], wanted: list[Tensor], tolerance: float) -> None:
    comparison.assert_close([t.double() for t in got], wanted, tolerance)
