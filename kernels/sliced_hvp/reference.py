"""The specification of a GRBM's sliced score matching terms with their first order, in plain torch ops.

With s = grad_v log p(v) and its Jacobian, the Hessian H = -diag(1/sigma^2) + W diag(sigmoid'(c+vW)) W^T:
1/2 |s|^2 [..., B] and u^T H u [..., M, B]. Shape tags: v [..., B, D], u [..., M, B, D]; README.md derives `first`.
"""

import torch
from torch import Tensor

from eblvm.kernels.grbm.reference import precision


def value(v: Tensor, u: Tensor, W: Tensor, b: Tensor, c: Tensor, log_sigma: Tensor) -> tuple[Tensor, ...]:
    """(1/2 |s|^2, u^T H u), and what `first` reads of it: the mean of h given v, s and u W [..., M, B, H]."""
    mean = torch.sigmoid(v @ W + c.unsqueeze(-2))
    score = mean @ W.mT - (v - b.unsqueeze(-2)) * precision(log_sigma)
    slices = (u.flatten(-3, -2) @ W).unflatten(-2, u.shape[-3:-1])
    slope = (mean * (1 - mean)).unsqueeze(-3)
    curvature = (slope * slices.square()).sum(-1) - (precision(log_sigma).unsqueeze(-2) * u.square()).sum(-1)
    return 0.5 * score.square().sum(-1), curvature, mean, score, slices


def first(
    f: Tensor,
    k: Tensor,
    mean: Tensor,
    score: Tensor,
    slices: Tensor,
    v: Tensor,
    u: Tensor,
    W: Tensor,
    b: Tensor,
    c: Tensor,
    log_sigma: Tensor,
    wants_v: bool,
    wants_u: bool,
) -> tuple[Tensor, ...]:
    """Gradients of W, b, c, log_sigma, then of v and u where wanted, from cotangents f [..., B] and k [..., M, B]."""
    k, p = k.unsqueeze(-1), precision(log_sigma)
    r = f.unsqueeze(-1) * score
    slope = mean * (1 - mean)
    x_bar = slope * (r @ W + (1 - 2 * mean) * (k * slices.square()).sum(-3))
    slices_bar = 2 * k * slope.unsqueeze(-3) * slices
    W_bar = v.mT @ x_bar + r.mT @ mean + u.flatten(-3, -2).mT @ slices_bar.flatten(-3, -2)
    u_bar = -2 * k * p.unsqueeze(-2) * u
    log_sigma_bar = 2 * (r * (v - b.unsqueeze(-2)) * p).sum(-2) - (u_bar * u).sum((-3, -2))
    gradients = [W_bar, (r * p).sum(-2), x_bar.sum(-2), log_sigma_bar]
    if wants_v:
        gradients.append(x_bar @ W.mT - r * p)
    if wants_u:
        gradients.append(u_bar + (slices_bar.flatten(-3, -2) @ W.mT).unflatten(-2, u.shape[-3:-1]))
    return tuple(gradients)
