"""The specification of the denoising step on a GRBM: loss and all gradients in closed form, in plain torch ops.

loss = mean_B 1/2 |s(v + sigma eps) + eps/sigma|^2 with s the score of the free energy.
"""

import torch
from torch import Tensor

from eblvm.kernels.grbm import reference


def grbm_dsm(
    v: Tensor, eps: Tensor, W: Tensor, b: Tensor, c: Tensor, log_sigma: Tensor, sigma: float
) -> tuple[Tensor, ...]:
    """(loss [...], gradients of W, b, c and log_sigma)."""
    v = v + sigma * eps
    _, score, mean = reference.value(v, W, b, c, log_sigma, None)
    r = (score + eps / sigma) / v.shape[-2]
    loss = 0.5 * v.shape[-2] * r.square().sum((-2, -1))
    g = torch.zeros_like(v[..., 0])
    return loss, *reference.first(g, r, mean, v, W, b, c, log_sigma, None, False, False)
