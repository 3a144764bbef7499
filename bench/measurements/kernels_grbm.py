"""Rows of suite `kernels`: the GRBM ops against torch's autograd of their reference, at Frey face's sizes."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from eblvm.bench.tools.kernel_row import Row, Run, normal
from eblvm.kernels.grbm import grbm
from eblvm.kernels.grbm import reference as grbm_reference
from eblvm.kernels.grbm_dsm import grbm_dsm
from eblvm.kernels.sliced_hvp import reference as sliced_reference
from eblvm.kernels.sliced_hvp import sliced_hvp

B, D, H, SIGMA = 100, 560, 400, 0.3
SIZES = f"B={B} D={D} H={H}"


def grbm_rows() -> list[Row]:
    """Value and first order of `grbm` with h and without and of `sliced_hvp` with M directions; `grbm_dsm`."""
    orders = ("value", "first")
    return [
        *(
            Row("grbm", f"h={h} order={order} {SIZES}", grbm_pair(h, order))
            for h in ("given", "none")
            for order in orders
        ),
        Row("grbm_dsm", f"order=first {SIZES}", dsm_pair),
        *(Row("sliced_hvp", f"M={M} order={order} {SIZES}", sliced_pair(M, order)) for M in (1, 4) for order in orders),
    ]


def theta(dtype: torch.dtype) -> tuple[Tensor, ...]:
    W, rows = 0.05 * normal(3, D, H, dtype=dtype), normal(4, 3, D, dtype=dtype)
    return W, rows[0], rows[1, :H], 0.1 * rows[2]


def grbm_pair(given: str, order: str) -> Callable[[torch.dtype], tuple[Run, Run]]:
    def make(dtype: torch.dtype) -> tuple[Run, Run]:
        v, score_bar = normal(0, B, D, dtype=dtype), normal(1, B, D, dtype=dtype)
        h = normal(2, B, H, dtype=dtype).sigmoid() if given == "given" else None
        cotangents = (v[:, 0].clone(), score_bar)
        fused, plain = (lambda *t, f=f: f(v, *t, h)[:2] for f in (grbm, grbm_reference.value))
        return of_order(order, fused, theta(dtype), cotangents), of_order(order, plain, theta(dtype), cotangents)

    return make


def sliced_pair(M: int, order: str) -> Callable[[torch.dtype], tuple[Run, Run]]:
    def make(dtype: torch.dtype) -> tuple[Run, Run]:
        v, u = normal(0, B, D, dtype=dtype), normal(1, M * B, D, dtype=dtype).view(M, B, D)
        cotangents = (v[:, 0].clone(), u[..., 0].clone())
        fused, plain = (lambda *t, f=f: f(v, u, *t)[:2] for f in (sliced_hvp, sliced_reference.value))
        return of_order(order, fused, theta(dtype), cotangents), of_order(order, plain, theta(dtype), cotangents)

    return make


def of_order(order: str, f: Callable[..., Any], theta: Sequence[Tensor], cotangents: Sequence[Tensor]) -> Run:
    leaves = [p.clone().requires_grad_() for p in theta]

    def first() -> Sequence[Tensor]:
        with torch.enable_grad():
            return torch.autograd.grad(f(*leaves), leaves, cotangents)

    return first if order == "first" else lambda: f(*theta)


def dsm_pair(dtype: torch.dtype) -> tuple[Run, Run]:
    v, eps, parameters = normal(0, B, D, dtype=dtype), normal(1, B, D, dtype=dtype), theta(dtype)
    leaves = [p.clone().requires_grad_() for p in parameters]

    def by_autograd() -> tuple[Tensor, Sequence[Tensor]]:
        with torch.enable_grad():
            _, score, _ = grbm_reference.value(v + SIGMA * eps, *leaves, None)
            loss = 0.5 * (score + eps / SIGMA).square().sum(-1).mean()
            return loss.detach(), torch.autograd.grad(loss, leaves)

    return lambda: grbm_dsm(v, eps, *parameters, SIGMA), by_autograd
