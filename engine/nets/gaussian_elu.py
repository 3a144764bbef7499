"""Expectations of the squared-ELU head under a Gaussian q, in closed form.

The deep head is e(f, h) = sum_j r(a_j), r(a) = elu(a)^2, with a = W1 f + (W1 + W2) h + b affine in h. Under
q = N(mean, std^2) with independent units every a_j is Gaussian, with mean mu_j and variance

    mu = W1 f + U mean + b,   t = (U * U) std^2,   U = W1 + W2,

so E_q[e] and all its derivatives follow from E[r^(k)(a_j)], r^(k) the k-th derivative of r, without a sample of h:

    d E_q[e] / d mean    = U^T E[r']                     d^2 / d mean^2 = U^T diag(E[r'']) U
    d E_q[e] / d log std = std^2 * (U * U)^T E[r'']      d E_q[e] / df  = W1^T E[r']

Shape tags: B batch, H latent units, W width of the head.
"""

import math
from functools import cache
from typing import Any

import torch
from torch import Tensor

from eblvm.kernels.runtime.orders import order

TINY = 1e-12  # least variance: keeps a q without spread a density
LARGEST_X = {torch.float32: 9.0, torch.float64: 26.0}  # up to here erfc(x) is a normal number, and so is exp(x^2)
SAMPLES_AT_A_TIME = 4


class _Plain:
    @staticmethod
    def value(ks: tuple[int, ...], mean: Tensor, variance: Tensor) -> tuple[Tensor, ...]:
        variance = variance.clamp_min(TINY)
        std = variance.sqrt()
        z = mean / std
        bell = torch.exp(-0.5 * z * z)
        density = bell / (std * math.sqrt(2 * math.pi))
        below1, below2 = (_below(c, mean, variance, std, z, bell) for c in (1, 2))
        above = 0.5 * torch.erfc(z * -math.sqrt(0.5)) if min(ks) < 3 else z

        def moment(k: int) -> Tensor:
            if k > 2:
                smooth = 2**k * below2 - 2 * below1
                return smooth if k == 3 else smooth - _boundary(k, mean, variance) * density
            if k == 2:
                return 2 * above + 4 * below2 - 2 * below1
            if k == 1:
                return 2 * (mean * above + variance * density + below2 - below1)
            square = (mean * mean + variance) * above + mean * variance * density
            return square + below2 - 2 * below1 + (1 - above)

        return tuple(moment(k) for k in ks)


def _below(c: int, mean: Tensor, variance: Tensor, std: Tensor, z: Tensor, bell: Tensor) -> Tensor:
    """Return E[exp(c a); a < 0] = exp(c mean + c^2 variance / 2) Phi(-x sqrt(2)) with
    x = (mean + c variance) / (std sqrt(2)).

    Where the exponential would overflow and Phi vanish, x is large and Phi's asymptotic series is exact to rounding."""
    x = (z + c * std) * math.sqrt(0.5)
    limit = LARGEST_X[mean.dtype]
    near = x.clamp_max(limit)
    inverse = 1 / x.clamp_min(limit)
    square = inverse * inverse
    series = (inverse / math.sqrt(math.pi)) * (1 - 0.5 * square * (1 - 1.5 * square * (1 - 2.5 * square)))
    direct = torch.exp((c * (mean + 0.5 * c * variance)).clamp_max(limit * limit)) * torch.erfc(near)
    return 0.5 * torch.where(x < limit, direct, bell * series)


@cache
def _boundary_terms(k: int) -> dict[tuple[int, int], int]:
    """Return what E[r^(k)] loses at a = 0, where the third derivative of r jumps from 6 to 0, in units of the density
    of a there: the coefficients of (mean / variance)^i variance^-j by (i, j).

    d E[exp(c a); a < 0] / d mean = c E[exp(c a); a < 0] - density, and d density / d mean = -(mean / variance) density,
    so B_3 = 0 and B_(k+1) = 2^k - 2 + dB_k / d mean - (mean / variance) B_k."""
    if k == 3:
        return {}
    terms = {(0, 0): 2 ** (k - 1) - 2}
    for (i, j), coefficient in _boundary_terms(k - 1).items():
        if i:
            terms[i - 1, j + 1] = terms.get((i - 1, j + 1), 0) + i * coefficient
        terms[i + 1, j] = terms.get((i + 1, j), 0) - coefficient
    return terms


def _boundary(k: int, mean: Tensor, variance: Tensor) -> Tensor:
    ratio, inverse = mean / variance, 1 / variance
    return _total([c * ratio**i * inverse**j for (i, j), c in _boundary_terms(k).items()])


def _pull(backend: Any, arguments: Any, kept: Any, cotangents: Any, wanted: Any) -> tuple[Any, ...]:
    """Return the derivatives: d/d mean raises k by one; d/d variance is half of the second derivative in mean."""
    ks, mean, variance = arguments
    raised = sorted({k + by for k in ks for by, want in ((1, wanted[1]), (2, wanted[2])) if want})
    moments = dict(zip(raised, _moments(backend, tuple(raised), mean, variance), strict=True))
    pairs = list(zip(cotangents, ks, strict=True))
    by_mean = _total([g * moments[k + 1] for g, k in pairs]) if wanted[1] else None
    by_variance = _total([0.5 * g * moments[k + 2] for g, k in pairs]) if wanted[2] else None
    return None, by_mean, by_variance


def _total(terms: list[Tensor]) -> Tensor:
    return terms[0] if len(terms) == 1 else torch.stack(terms).sum(0)


_moments = order("value", _pull)


def elu_squared_moments(ks: tuple[int, ...], mean: Tensor, variance: Tensor) -> tuple[Tensor, ...]:
    """Return E[r^(k)(a)] for each k, with a ~ N(mean, variance), r(a) = elu(a)^2 and tensors of one shape.

    Differentiable: each derivative is a moment of higher k. Only mean and variance are kept for the backward pass."""
    return _moments(_Plain, ks, mean, variance)


def elu_squared_moment(k: int, mean: Tensor, variance: Tensor) -> Tensor:
    return elu_squared_moments((k,), mean, variance)[0]


class _Variance:
    @staticmethod
    def value(weight: Tensor, variance_BH: Tensor) -> Tensor:
        return variance_BH @ _halves(weight).square().mT


def _pull_variance(backend: Any, arguments: Any, kept: Any, cotangents: Any, wanted: Any) -> tuple[Any, ...]:
    (g_BW,), (weight, variance_BH) = cotangents, arguments
    u_WH = _halves(weight)
    half_WH = 2 * (g_BW.mT @ variance_BH) * u_WH if wanted[0] else None
    return (
        None if half_WH is None else torch.cat([half_WH, half_WH], -1),
        g_BW @ u_WH.square() if wanted[1] else None,
    )


_variance = order("value", _pull_variance)  # keeps no [W, H] tensor except the weight itself


def _halves(x: Tensor) -> Tensor:
    """Return the sum of the halves of the last axis: of the weight U = W1 + W2 [W, H], the factor of h."""
    first, second = x.chunk(2, -1)
    return first + second


def _moments_of_a(
    weight: Tensor, bias: Tensor, f_BH: Tensor, mean_BH: Tensor, log_std_BH: Tensor
) -> tuple[Tensor, Tensor]:
    """Return mu and t [B, W], the mean and variance of a."""
    mu_BW = torch.cat([f_BH + mean_BH, mean_BH.expand_as(f_BH + mean_BH)], -1) @ weight.mT + bias
    return mu_BW, _variance(_Variance, weight, torch.exp(2 * log_std_BH)).expand_as(mu_BW)


def expected_head(weight: Tensor, bias: Tensor, f_BH: Tensor, mean_BH: Tensor, log_std_BH: Tensor) -> Tensor:
    """Return E_q |elu(weight [f + h, h] + bias)|^2 [B]."""
    return elu_squared_moment(0, *_moments_of_a(weight, bias, f_BH, mean_BH, log_std_BH)).sum(-1)


def expected_pull(weight: Tensor, bias: Tensor, f_BH: Tensor, mean_BH: Tensor, log_std_BH: Tensor) -> Tensor:
    """Return d E_q[head] / df [B, H] = W1^T E[r'], at a fixed q."""
    first_BW = elu_squared_moment(1, *_moments_of_a(weight, bias, f_BH, mean_BH, log_std_BH))
    return first_BW @ weight.chunk(2, -1)[0]


def expected_slope(
    weight: Tensor, bias: Tensor, f_BH: Tensor, mean_BH: Tensor, log_std_BH: Tensor, block: str
) -> Tensor:
    """Return d E_q[head] / d mean [B, H]; with block 'full' (d / d mean, d / d log std) [B, 2H]."""
    mu_BW, t_BW = _moments_of_a(weight, bias, f_BH, mean_BH, log_std_BH)
    if block == "mean":
        return _halves(elu_squared_moment(1, mu_BW, t_BW) @ weight)
    first_BW, second_BW = elu_squared_moments((1, 2), mu_BW, t_BW)
    by_log_std_BH = torch.exp(2 * log_std_BH) * (second_BW @ _halves(weight).square())
    return torch.cat([_halves(first_BW @ weight), by_log_std_BH], -1)


def expected_curvature(
    weight: Tensor, bias: Tensor, f_BH: Tensor, mean_BH: Tensor, log_std_BH: Tensor, block: str
) -> Tensor:
    """Return the Hessian of E_q[head] in mean [B, H, H], or with block 'full' in (mean, log std) [B, 2H, 2H]."""
    mu_BW, t_BW = _moments_of_a(weight, bias, f_BH, mean_BH, log_std_BH)
    u_WH = _halves(weight)
    if block == "mean":
        return _gram(u_WH, elu_squared_moment(2, mu_BW, t_BW), u_WH)
    second_BW, third_BW, fourth_BW = elu_squared_moments((2, 3, 4), mu_BW, t_BW)
    square_WH, variance_BH = u_WH.square(), torch.exp(2 * log_std_BH)
    of_mean_BHH = _gram(u_WH, second_BW, u_WH)
    mixed_BHH = _gram(u_WH, third_BW, square_WH) * variance_BH[:, None]
    of_std_BHH = _gram(square_WH, fourth_BW, square_WH)
    of_std_BHH = of_std_BHH * variance_BH[:, None] * variance_BH[:, :, None]
    of_std_BHH = of_std_BHH + torch.diag_embed(2 * variance_BH * (second_BW @ square_WH))
    return torch.cat([torch.cat([of_mean_BHH, mixed_BHH], -1), torch.cat([mixed_BHH.mT, of_std_BHH], -1)], -2)


def _gram(left_WH: Tensor, weight_BW: Tensor, right_WH: Tensor) -> Tensor:
    """Return left^T diag(weight) right for every sample; a few samples at a time, as each needs an [H, W] tensor."""
    left_HW = left_WH.mT.contiguous()
    return torch.cat([(left_HW * part[:, None]) @ right_WH for part in weight_BW.split(SAMPLES_AT_A_TIME)])
