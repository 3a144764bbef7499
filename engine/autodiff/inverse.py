"""Inverses of batches of symmetric matrices that may be indefinite, by eigenvalues or by matrix-vector products only.

Shape tags: B batch, E size of a matrix.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from eblvm.engine.autodiff.mixed_precision import full_precision

ProductOf = Callable[..., Callable[[Tensor], Tensor]]  # leaves -> (x [B, E] -> M x), pure


def floored_inverse(m_BEE: Tensor, floor: float) -> tuple[Tensor, Tensor]:
    """Return (V diag(1 / max(|lambda|, floor)) V^T [B, E, E], fraction of lambda < floor [B]). The inverse of a matrix
    that is not finite is zero."""
    finite_B = m_BEE.isfinite().flatten(1).all(1)
    identity_EE = torch.eye(m_BEE.shape[-1], dtype=m_BEE.dtype, device=m_BEE.device)
    symmetric_BEE = torch.where(finite_B[:, None, None], 0.5 * (m_BEE + m_BEE.mT), identity_EE)
    values_BE, vectors_BEE = torch.linalg.eigh(symmetric_BEE)
    reciprocals_BE = torch.where(finite_B[:, None], 1 / values_BE.abs().clamp_min(floor), 0)
    with full_precision(m_BEE):
        inverse_BEE = (vectors_BEE * reciprocals_BE[:, None]) @ vectors_BEE.mT
    return inverse_BEE, (values_BE < floor).to(m_BEE.dtype).mean(-1)


def conjugate_gradients(
    product: Callable[[Tensor], Tensor], b_BE: Tensor, floor: float, iterations: int
) -> tuple[Tensor, Tensor]:
    """Return (M^-1 b [B, E], stopped [B]), for each sample on its own and without a branch on data. A sample stops,
    with 1 in `stopped`, when the curvature along its search direction is below the floor; if that is the first
    direction, it moves along it as if the curvature were the floor."""
    tolerance = torch.finfo(b_BE.dtype).eps ** 2 * _dot(b_BE, b_BE)
    x, r, direction, rr = torch.zeros_like(b_BE), b_BE, b_BE, _dot(b_BE, b_BE)
    active = rr > 0
    stopped = torch.zeros_like(active)
    for i in range(iterations):
        image = product(direction)
        curvature, least = _dot(direction, image), floor * _dot(direction, direction)
        low = active & ~(curvature >= least)
        stopped = stopped | low
        goes = active if i == 0 else active & ~low
        rate = torch.where(goes, rr / torch.where(goes, torch.where(low, least, curvature), 1), 0)
        x = x + rate * direction
        r = r - rate * torch.where(goes, image, 0)
        after = _dot(r, r)
        direction = r + torch.where(goes, after / torch.where(goes, rr, 1), 0) * direction
        active, rr = active & ~low & (after > tolerance), after
    return x, stopped.to(b_BE.dtype).squeeze(-1)


def _dot(x_BE: Tensor, y_BE: Tensor) -> Tensor:
    return (x_BE * y_BE).sum(-1, keepdim=True)


def solve(product_of: ProductOf, b_BE: Tensor, leaves: list[Tensor], floor: float, iterations: int) -> Tensor:
    """Return M^-1 b by `conjugate_gradients`, linear in b to all orders; `leaves`, which define M, get no gradient."""
    return _Solve.apply(product_of, floor, iterations, b_BE, *leaves)


class _Solve(torch.autograd.Function):
    """M^-1 b. M is symmetric, so the backward pass solves with the same matrix and keeps only the leaves of M."""

    generate_vmap_rule = True

    @staticmethod
    def forward(product_of: ProductOf, floor: float, iterations: int, b_BE: Tensor, *leaves: Tensor) -> Tensor:
        return conjugate_gradients(product_of(*leaves), b_BE, floor, iterations)[0]

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        ctx.product_of, ctx.floor, ctx.iterations, _, *leaves = inputs
        ctx.save_for_backward(*leaves)

    @staticmethod
    def backward(ctx: Any, g_BE: Tensor) -> tuple[Tensor | None, ...]:
        leaves = ctx.saved_tensors
        solved = solve(ctx.product_of, g_BE, list(leaves), ctx.floor, ctx.iterations)
        return None, None, None, solved, *[None] * len(leaves)
