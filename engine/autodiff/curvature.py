"""Scores and second derivatives along directions, for any log density."""

from collections.abc import Callable

import torch
from torch import Tensor

from eblvm.engine.autodiff.derivatives import grad, vjp


def score_and_curvature(
    log_density: Callable[[Tensor], Tensor], v: Tensor, directions: Tensor
) -> tuple[Tensor, Tensor]:
    """Return s = grad_v log p [B, ...] and u^T (grad_v^2 log p) u [M, B] for directions u [M, B, ...].

    All directions use one score and its graph; `vmap` multiplies them at once by its transposed Jacobian, which is the
    Hessian. A single direction needs no vmap.
    """
    score, hessian = vjp(lambda x: grad(lambda y: (log_density(y).sum(), ()), x)[0], v)
    along = hessian(directions[0])[None] if len(directions) == 1 else torch.vmap(hessian)(directions)
    return score, (along * directions).flatten(2).sum(2)
