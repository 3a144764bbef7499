"""Log-likelihoods of a GRBM: exact where h can be enumerated, bracketed by annealed importance sampling elsewhere; and
its score matching loss.

The path is that of `engine/sampling/annealing.py`: at beta 0 log Z_0 = H log 2 + sum log(sigma) + D/2 log 2 pi.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from eblvm.engine.nets.grbm import GRBM
from eblvm.engine.sampling.annealing import OnStep, Walk, annealed, straight_path, walk
from eblvm.engine.types import Params
from eblvm.kernels.philox import Key


class LogZ(NamedTuple):
    value: float
    standard_error: float  # 0 where exact
    effective_chains: float = math.inf  # (sum w)^2 / sum w^2: near 1 the standard error says nothing


@torch.no_grad()
def log_likelihood(energy: GRBM, theta: Params, v: Tensor, log_z: float) -> float:
    """Mean over v of log p(v) = -F(v) - log Z."""
    return float(-energy.at(theta).free_energy(v).mean()) - log_z


@torch.no_grad()
def score_matching_loss(energy: GRBM, theta: Params, v: Tensor) -> float:
    """E [1/2 |s(v)|^2 + tr grad_v s(v)], the "test Fisher" of the BiSM paper's tables: the Fisher divergence to the
    data less a constant of the data."""
    energy = energy.at(theta)
    return float((0.5 * energy.score(v).square().sum(-1) + energy.laplacian(v)).mean())


@torch.no_grad()
def exact_log_z(energy: GRBM, theta: Params) -> LogZ:
    return LogZ(float(energy.at({k: p.double() for k, p in theta.items()}).log_z()), 0.0)


def ais(
    energy: GRBM, theta: Params, key: Key, chains: int = 2000, temperatures: int = 2000, on_step: OnStep | None = None
) -> LogZ:
    """log Z and its standard error by AIS (Neal 2001; Salakhutdinov & Murray 2008) from beta 0 to 1."""
    return ais_log_z(energy, theta, annealed(theta, key, chains, temperatures, on_step))


@torch.no_grad()
def ais_log_z(energy: GRBM, theta: Params, ends: Walk) -> LogZ:
    """log Z from chains that were annealed from beta 0 to 1.

    With w = exp(sum over the path of F_beta(v) - F_beta'(v)), Z / Z_0 = E w. By Jensen E log mean w <= log Z / Z_0: a
    lower bound on log Z in expectation, and an upper bound on a log-likelihood. By Markov it is above log Z by more
    than x with a probability of at most exp(-x), whatever the chains have missed."""
    relative = _log_mean(ends.log_weight)
    return relative._replace(value=_log_z_start(energy, theta) + relative.value)


@torch.no_grad()
def reverse_ais(
    energy: GRBM, theta: Params, key: Key, v: Tensor, temperatures: int = 2000, on_step: OnStep | None = None
) -> LogZ:
    """log Z and its standard error by AIS from beta 1 to 0, for chains that start at v [chains, D], samples of p(v)
    (Grosse et al. 2015).

    Along the path backwards Z_0 / Z = E 1/w, as the sweeps of p_beta(v) are reversible. Now Jensen gives an upper bound
    on log Z in expectation, and a lower bound on a log-likelihood: as far as v are samples of the model."""
    relative = _log_mean(walk(theta, key, v, straight_path(temperatures)[::-1], on_step).log_weight)
    return relative._replace(value=_log_z_start(energy, theta) - relative.value)


def _log_z_start(energy: GRBM, theta: Params) -> float:
    return energy.latent * math.log(2) + float(theta["log_sigma"].sum()) + 0.5 * energy.visible * math.log(2 * math.pi)


def _log_mean(log_weight: Tensor) -> LogZ:
    """log mean w, by the delta method its standard error, and how many chains' worth of weight there is."""
    log_mean = float(log_weight.logsumexp(0)) - math.log(len(log_weight))
    relative = torch.exp(log_weight - log_mean)
    effective = float(relative.sum().square() / relative.square().sum())
    return LogZ(log_mean, float(relative.std()) / math.sqrt(len(log_weight)), effective)
