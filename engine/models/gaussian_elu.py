"""Expectations of the squared-ELU head under a Gaussian q, in closed form.

The deep head is e(f, h) = sum_j r(a_j), r(a) = elu(a)^2, with a = W1 f + (W1 + W2) h + b affine in h. Under
q = N(mean, std^2) with independent units every a_j is Gaussian, with mean mu_j and variance

    mu = W1 f + U mean + b,   t = (U * U) std^2,   U = W1 + W2,

so E_q[e] and all its derivatives are made of E[r^(k)(a_j)], the k-th derivative of r, and need no sample of h:

    d E_q[e] / d mean    = U^T E[r']                     d^2 / d mean^2 = U^T diag(E[r'']) U
    d E_q[e] / d log std = std^2 * (U * U)^T E[r'']

Shape tags: B batch, H latent units, W width of the head.
"""

import math
from typing import Any

import torch
from torch import Tensor

from eblvm.kernels.common.orders import order

TINY = 1e-12  # least variance: a q without spread is still a density
SAMPLES_AT_A_TIME = 4


class _Plain:
    @staticmethod
    def value(k: int, mean: Tensor, variance: Tensor) -> Tensor:
        variance = variance.clamp_min(TINY)
        std = variance.sqrt()
        z = mean / std
        density = torch.exp(-0.5 * z * z) / (std * math.sqrt(2 * math.pi))
        below1, below2 = _below(1, mean, variance, std, z), _below(2, mean, variance, std, z)
        if k > 2:
            smooth = 2**k * below2 - 2 * below1
            return smooth if k == 3 else smooth - _boundary(k, mean, variance) * density
        above = 0.5 * torch.erfc(z * -math.sqrt(0.5))
        if k == 2:
            return 2 * above + 4 * below2 - 2 * below1
        if k == 1:
            return 2 * (mean * above + variance * density + below2 - below1)
        square = (mean * mean + variance) * above + mean * variance * density
        return square + below2 - 2 * below1 + (1 - above)


def _below(c: int, mean: Tensor, variance: Tensor, std: Tensor, z: Tensor) -> Tensor:
    """E[exp(c a); a < 0] = exp(c mean + c^2 variance / 2) Phi(-(mean + c variance) / std), with no overflow."""
    x = (z + c * std) * math.sqrt(0.5)
    right = torch.exp(-0.5 * z * z) * torch.special.erfcx(x.clamp_min(0))
    exponent = c * mean + 0.5 * c * c * variance
    left = torch.exp(torch.where(x < 0, exponent, 0.0)) * torch.erfc(x.clamp_max(0))
    return 0.5 * torch.where(x < 0, left, right)


def _boundary(k: int, mean: Tensor, variance: Tensor) -> Tensor | float:
    """What E[r^(k)] has less, in units of the density of a at 0: r''' jumps there, from 6 to 0.

    d E[exp(c a); a < 0] / d mean = c E[exp(c a); a < 0] - density, and d density / d mean = -(mean / variance) density.
    """
    ratio = mean / variance
    if k == 4:
        return 6.0
    if k == 5:
        return 14.0 - 6 * ratio
    if k == 6:
        return 30.0 - 6 / variance - 14 * ratio + 6 * ratio * ratio
    raise ValueError(f"elu_squared_moment got k={k}; expected 0 to 6: nothing here differentiates that often")


def _pull(backend: Any, arguments: Any, kept: Any, cotangents: Any, wanted: Any) -> tuple[Any, ...]:
    """d/d mean raises k by one; d/d variance is half of the second derivative in mean."""
    (g,), (k, mean, variance) = cotangents, arguments
    by_mean = g * _moment(backend, k + 1, mean, variance) if wanted[1] else None
    by_variance = 0.5 * g * _moment(backend, k + 2, mean, variance) if wanted[2] else None
    return None, by_mean, by_variance


_moment = order("value", _pull)


def elu_squared_moment(k: int, mean: Tensor, variance: Tensor) -> Tensor:
    """E[r^(k)(a)] for a ~ N(mean, variance) and r(a) = elu(a)^2; k = 0 to 6, tensors of one shape.

    Differentiable: each derivative is a moment of higher k. It keeps mean and variance alone for its backward pass.
    """
    return _moment(_Plain, k, mean, variance)


def _inputs(
    weight: Tensor, bias: Tensor, f_BH: Tensor, mean_BH: Tensor, log_std_BH: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """(U, mu, t): what h is multiplied by, and the mean and variance of a."""
    w1_WH, w2_WH = weight.chunk(2, -1)
    u_WH = w1_WH + w2_WH
    mu_BW = torch.cat([f_BH + mean_BH, mean_BH], -1) @ weight.mT + bias
    return u_WH, mu_BW, torch.exp(2 * log_std_BH) @ u_WH.square().mT


def expected_head(weight: Tensor, bias: Tensor, f_BH: Tensor, mean_BH: Tensor, log_std_BH: Tensor) -> Tensor:
    """E_q |elu(weight [f + h, h] + bias)|^2 [B]."""
    _, mu_BW, t_BW = _inputs(weight, bias, f_BH, mean_BH, log_std_BH)
    return elu_squared_moment(0, mu_BW, t_BW).sum(-1)


def expected_slope(
    weight: Tensor, bias: Tensor, f_BH: Tensor, mean_BH: Tensor, log_std_BH: Tensor, block: str
) -> Tensor:
    """d E_q[head] / d mean [B, H]; with block 'full' also d / d log std beside it [B, 2H]."""
    u_WH, mu_BW, t_BW = _inputs(weight, bias, f_BH, mean_BH, log_std_BH)
    by_mean_BH = elu_squared_moment(1, mu_BW, t_BW) @ u_WH
    if block == "mean":
        return by_mean_BH
    by_log_std_BH = torch.exp(2 * log_std_BH) * (elu_squared_moment(2, mu_BW, t_BW) @ u_WH.square())
    return torch.cat([by_mean_BH, by_log_std_BH], -1)


def expected_curvature(
    weight: Tensor, bias: Tensor, f_BH: Tensor, mean_BH: Tensor, log_std_BH: Tensor, block: str
) -> Tensor:
    """The Hessian of E_q[head] in mean [B, H, H], or with block 'full' in (mean, log std) [B, 2H, 2H]."""
    u_WH, mu_BW, t_BW = _inputs(weight, bias, f_BH, mean_BH, log_std_BH)
    second_BW = elu_squared_moment(2, mu_BW, t_BW)
    of_mean_BHH = _gram(u_WH, second_BW, u_WH)
    if block == "mean":
        return of_mean_BHH
    square_WH, variance_BH = u_WH.square(), torch.exp(2 * log_std_BH)
    mixed_BHH = _gram(u_WH, elu_squared_moment(3, mu_BW, t_BW), square_WH) * variance_BH[:, None]
    of_std_BHH = _gram(square_WH, elu_squared_moment(4, mu_BW, t_BW), square_WH)
    of_std_BHH = of_std_BHH * variance_BH[:, None] * variance_BH[:, :, None]
    of_std_BHH = of_std_BHH + torch.diag_embed(2 * variance_BH * (second_BW @ square_WH))
    return torch.cat([torch.cat([of_mean_BHH, mixed_BHH], -1), torch.cat([mixed_BHH.mT, of_std_BHH], -1)], -2)


def _gram(left_WH: Tensor, weight_BW: Tensor, right_WH: Tensor) -> Tensor:
    """left^T diag(weight) right for every sample; a few samples at a time, as each takes a [W, H] tensor."""
    parts = [left_WH.mT @ (part[:, :, None] * right_WH) for part in weight_BW.split(SAMPLES_AT_A_TIME)]
    return torch.cat(parts)
