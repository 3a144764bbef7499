"""Log-likelihood of a model of points in the plane: log Z by the midpoint rule on a grid over v, h integrated out.

    log p(v) = log p~(v) - log Z,    p~(v) = integral exp(-E(v, h)) dh,    log Z = log sum over the grid of p~ dv

h is integrated in closed form where the energy has a free energy; else by the trapezoidal rule for H <= 2, on nodes
around q's mean in units of q's standard deviation; else by importance sampling from q(h|v).
Shape tags: B batch, H latent units, L nodes or samples of h.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from eblvm.engine.errors import UserError
from eblvm.engine.evaluation.metrics.importance_likelihood import LogDensity, importance_weighted
from eblvm.engine.nets.base import Energy
from eblvm.engine.nets.posteriors import Gaussian
from eblvm.engine.types import Params
from eblvm.kernels.philox import Key

QUADRATURE_H = 2
NODES, REACH = 17, 6.0  # of the trapezoidal rule: a unit of h has that many, up to 6 standard deviations of q away
SAMPLES = 64  # of h, where it is not integrated on nodes
PAIRS = 2**17  # of v and h in memory at once
NEGLIGIBLE = 1e-7  # a fraction of the model's mass
SEARCH_SIZE, SEARCH_STEPS = 64, 12

LogMarginal = Callable[[Tensor], LogDensity]  # v [B, 2] -> log p~(v)


class GridLikelihood(NamedTuple):
    log_likelihood: float  # mean of log p(v), in nats
    standard_error: float  # of the integral over h by samples; 0 for the other two ways
    log_z: float
    box: tuple[tuple[float, float], tuple[float, float]]  # of the grid: (low, high) of each coordinate


@torch.no_grad()
def grid_log_likelihood(
    energy: Energy,
    theta: Params,
    v: Tensor,
    posterior: Gaussian | None = None,
    phi: Params | None = None,
    size: int = 200,
) -> GridLikelihood:
    """Mean log p(v) of v [B, 2] by a grid of size x size cells over the box with the model's mass.

    Importance sampling estimates p~ without bias, so log p~(v) is low by about half the variance of its weights' mean;
    the error counts this as well as the deviation."""
    if v.dim() != 2 or v.shape[1] != 2:
        raise UserError(f"a grid is for points in the plane, [n, 2]; got samples of shape {list(v.shape[1:])}")
    log_marginal = log_marginal_of(energy, theta, posterior, phi, Key(0, 0))
    low, high = mass_box(log_marginal, v)
    grid, area = midpoints(low, high, size)
    cells, data = log_marginal(grid), log_marginal(v)
    log_z = cells.value.logsumexp(0) + math.log(area)
    fraction = torch.exp(cells.value - cells.value.logsumexp(0))
    variance = (fraction * cells.standard_error).square().sum() + data.standard_error.square().mean() / len(v)
    bias = 0.5 * data.standard_error.square().mean()
    error = float((variance + bias.square()).sqrt())
    box = tuple(zip(low.tolist(), high.tolist(), strict=True))
    return GridLikelihood(float(data.value.mean() - log_z), error, float(log_z), (box[0], box[1]))


def log_marginal_of(
    energy: Energy, theta: Params, posterior: Gaussian | None, phi: Params | None, key: Key
) -> LogMarginal:
    """log p~(v) as a function of v, by the best way that the model allows."""
    if hasattr(energy, "free_energy"):
        marginal: Any = energy.at(theta)
        return lambda v: _exact(-marginal.free_energy(v))
    if posterior is None or phi is None:
        raise UserError("the energy has no free energy: give its posterior and phi, by which h is integrated out")
    quadrature = posterior.latent <= QUADRATURE_H
    L = NODES**posterior.latent if quadrature else SAMPLES
    constant = 0.5 * posterior.latent * math.log(2 * math.pi)  # that log q leaves out

    def log_marginal(v: Tensor) -> LogDensity:
        densities, first = [], 0
        for part in v.split(max(1, PAIRS // L)):
            if quadrature:
                densities.append(_exact(trapezoidal(energy, theta, posterior, phi, part)))
            else:
                value, error = importance_weighted(energy, theta, posterior, phi, part, key, SAMPLES, first)
                densities.append(LogDensity(value + constant, error))
            first += len(part)
        return LogDensity(*(torch.cat(parts) for parts in zip(*densities, strict=True)))

    return log_marginal


def trapezoidal(energy: Energy, theta: Params, posterior: Gaussian, phi: Params, v: Tensor) -> Tensor:
    """log integral exp(-E(v, h)) dh [B], on the nodes mean + std x with x equally spaced in [-REACH, REACH]^H."""
    energy, posterior = energy.at(theta), posterior.at(phi)
    mean_BH, log_std_BH = posterior.params(v)
    x = torch.linspace(-REACH, REACH, NODES, dtype=v.dtype, device=v.device)
    x_LH = torch.cartesian_prod(*[x] * posterior.latent).view(-1, posterior.latent)
    h = mean_BH + torch.exp(log_std_BH) * x_LH[:, None]
    e_LB = energy.head(energy.features(v), h).double()
    log_volume = log_std_BH.double().sum(-1) + posterior.latent * math.log(2 * REACH / (NODES - 1))
    return (-e_LB).logsumexp(0) + log_volume


def midpoints(low: Tensor, high: Tensor, size: int) -> tuple[Tensor, float]:
    """The centres of size x size cells over a box, [size^2, 2], and the area of a cell."""
    steps = (torch.arange(size, dtype=low.dtype, device=low.device) + 0.5) / size
    x, y = (a + (b - a) * steps for a, b in zip(low, high, strict=True))
    return torch.cartesian_prod(x, y), float((high - low).double().prod()) / size**2


def mass_box(log_marginal: LogMarginal, v: Tensor) -> tuple[Tensor, Tensor]:
    """(low, high) of a box outside of which the model has a negligible mass; it starts at that of v and grows."""
    low, high = v.amin(0), v.amax(0)
    low, high = low - (high - low), high + (high - low)
    for _ in range(SEARCH_STEPS):
        grid, _ = midpoints(low, high, SEARCH_SIZE)
        mass = log_marginal(grid).value.softmax(0).view(SEARCH_SIZE, SEARCH_SIZE)
        outer = 1 - float(mass[1:-1, 1:-1].sum())
        if outer < NEGLIGIBLE:
            cell = (high - low) / SEARCH_SIZE
            ranges = [_inner_range(mass.sum(1 - axis)) for axis in (0, 1)]
            first, last = torch.tensor(ranges, dtype=v.dtype, device=v.device).T
            return low + cell * first, low + cell * last
        low, high = low - (high - low) / 2, high + (high - low) / 2
    raise UserError(
        f"the model has {outer:.1e} of its mass at the edge of a grid {2**SEARCH_STEPS} times as wide as the data, "
        f"expected at most {NEGLIGIBLE:.0e}; its density hardly falls off, train it longer or check its energy"
    )


def _inner_range(mass: Tensor) -> tuple[int, int]:
    """The cells [first, last) of an axis with all but a negligible mass, and one more on each side."""
    cells = (mass > NEGLIGIBLE / len(mass)).nonzero()
    return max(0, int(cells.min()) - 1), min(len(mass), int(cells.max()) + 2)


def _exact(value: Tensor) -> LogDensity:
    return LogDensity(value.double(), torch.zeros_like(value, dtype=torch.float64))
