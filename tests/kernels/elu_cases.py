"""Inputs for ELU, and its derivatives through any backend."""

import torch
from torch import Tensor

from eblvm.kernels import elu_second_order
from eblvm.kernels.elu_second_order import reference

SIZES = [(1,), (63,), (100, 3), (257,), (0,), (2, 3, 5, 4)]
ALPHA = 1.3
TOLERANCE = {torch.float64: 1e-13, torch.float32: 1e-6}


def inputs(size: tuple[int, ...], dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor, Tensor]:
    """x over many scales, and cotangents g, u."""
    generator = torch.Generator().manual_seed(sum(size))
    x, g, u = (torch.randn(size, generator=generator, dtype=torch.float64) for _ in range(3))
    x = x * torch.logspace(-6, 1.5, max(x.numel(), 1), dtype=torch.float64)[: x.numel()].view(size)
    if x.numel() > 8:
        x.view(-1)[:3] = torch.tensor([0.0, -200.0, 200.0], dtype=torch.float64)
    return x.to(dtype), g.to(dtype), u.to(dtype)


def derivatives(backend: object, x: Tensor, g: Tensor, u: Tensor) -> list[Tensor]:
    x, g = x.detach().requires_grad_(), g.detach().requires_grad_()
    y = elu_second_order._value(backend, x, ALPHA)
    return [y.detach(), *both(y, x, g, u)]


def by_autograd(x: Tensor, g: Tensor, u: Tensor) -> list[Tensor]:
    """torch differentiates the definition, in float64."""
    x, g, u = (t.detach().double() for t in (x, g, u))
    x, g = x.requires_grad_(), g.requires_grad_()
    y = reference.value(x, ALPHA)
    return [y.detach(), *both(y, x, g, u)]


def both(y: Tensor, x: Tensor, g: Tensor, u: Tensor) -> list[Tensor]:
    (first,) = torch.autograd.grad(y, x, g, create_graph=True)
    return [first.detach(), *torch.autograd.grad(first, (g, x), u)]


def assert_close(got: list[Tensor], expected: list[Tensor], tolerance: float) -> None:
    """The value relative to itself, also near 0; derivatives absolutely, since torch's own of expm1 is no better."""
    for i, (a, e) in enumerate(zip(got, expected, strict=True)):
        assert a.shape == e.shape
        torch.testing.assert_close(a.double(), e, rtol=tolerance, atol=tolerance if i else 1e-36)
