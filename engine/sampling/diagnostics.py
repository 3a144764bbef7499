"""The mixing of Markov chains: effective sample size and R-hat (Vehtari, Gelman, Simpson, Carpenter & Buerkner
2021; Geyer 1992).

Draws are [chains, draws, ...], one statistic for every index of the rest. Both cut each chain into halves, so that a
chain which still drifts disagrees with itself. NaN means that nothing can be said: a statistic that never moved in any
chain, or one that is not finite.
"""

from __future__ import annotations

import math

import torch

FEWEST_DRAWS = 4  # two for each half


def effective_sample_size(draws: torch.Tensor) -> torch.Tensor:
    """The number of independent draws that estimate the mean as well as these do, [...] in fp64.

    ESS = M N / (1 + 2 sum_t rho_t), with the autocorrelations rho_t of all M half chains against the variance within
    and between them, summed in pairs as long as these are positive and falling (Geyer's initial monotone sequence).
    """
    x_MNP, rest = _halves(draws)
    M, N, _ = x_MNP.shape
    covariance_NP = _autocovariance(x_MNP).mean(0)
    within_P = covariance_NP[0] * N / (N - 1)
    total_P = covariance_NP[0] + x_MNP.mean(1).var(0)
    rho_NP = 1 - (within_P - covariance_NP * N / (N - 1)) / total_P
    rho_NP[0] = 1.0
    pairs_KP = rho_NP[: N // 2 * 2].unflatten(0, (N // 2, 2)).sum(1)
    pairs_KP = torch.where((pairs_KP > 0).cummin(0).values, pairs_KP.cummin(0).values, 0.0)
    # Antithetic chains can be better than independent draws, but not without limit.
    time_P = (2 * pairs_KP.sum(0) - 1).clamp(min=1 / math.log10(M * N))
    return torch.where(_known(x_MNP), M * N / time_P, math.nan).view(rest)


def r_hat(draws: torch.Tensor) -> torch.Tensor:
    """sqrt(total variance / variance within chains) of rank-normalised draws, [...] in fp64: 1 for chains that agree.

    The larger of two: of the draws, which sees chains at different places, and of their distances from the median,
    which sees chains of different widths. Above 1.01 the chains have not mixed.
    """
    x_MNP, rest = _halves(draws)
    median_P = x_MNP.flatten(0, 1).median(0).values
    found_P = torch.maximum(*(_variance_ratio(_normal_scores(x)) for x in (x_MNP, (x_MNP - median_P).abs())))
    return torch.where(_known(x_MNP), found_P, math.nan).view(rest)


def _halves(draws: torch.Tensor) -> tuple[torch.Tensor, torch.Size]:
    """[2 chains, draws // 2, P] in fp64, and the shape that P flattens; of an odd number the middle draw is unused."""
    if draws.dim() < 2 or draws.shape[1] < FEWEST_DRAWS:
        raise ValueError(f"got draws {list(draws.shape)}, expected [chains, {FEWEST_DRAWS} or more draws, ...]")
    x, half = draws.double().flatten(2) if draws.dim() > 2 else draws.double()[..., None], draws.shape[1] // 2
    return torch.cat([x[:, :half], x[:, -half:]]), draws.shape[2:]


def _autocovariance(x_MNP: torch.Tensor) -> torch.Tensor:
    """sum_i (x_i - mean)(x_{i+t} - mean) / N for t = 0 .. N - 1, [M, N, P], by the Fourier transform."""
    N = x_MNP.shape[1]
    spectrum = torch.fft.rfft(x_MNP - x_MNP.mean(1, keepdim=True), n=2 * N, dim=1)
    return torch.fft.irfft(spectrum.abs().square(), n=2 * N, dim=1)[:, :N] / N


def _variance_ratio(x_MNP: torch.Tensor) -> torch.Tensor:
    N = x_MNP.shape[1]
    within_P, between_P = x_MNP.var(1).mean(0), x_MNP.mean(1).var(0)
    ratio_P = ((N - 1) / N + between_P / within_P).sqrt()
    return torch.where(within_P > 0, ratio_P, torch.where(between_P > 0, math.inf, 1.0))


def _normal_scores(x_MNP: torch.Tensor) -> torch.Tensor:
    """Each draw replaced by the normal quantile of its rank among all chains' draws; equal draws have equal ranks."""
    flat_PS = x_MNP.flatten(0, 1).T.contiguous()
    ordered_PS = flat_PS.sort(-1).values
    below, upto = (torch.searchsorted(ordered_PS, flat_PS, side=side) for side in ("left", "right"))
    rank_PS = (below + upto + 1) / 2
    scores_PS = torch.special.ndtri((rank_PS.double() - 0.375) / (flat_PS.shape[1] + 0.25))
    return scores_PS.T.reshape(x_MNP.shape)


def _known(x_MNP: torch.Tensor) -> torch.Tensor:
    flat = x_MNP.flatten(0, 1)
    return flat.isfinite().all(0) & (flat.amax(0) > flat.amin(0))
