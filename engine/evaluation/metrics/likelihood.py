"""Log-likelihoods of a GRBM: exact where h can be enumerated, bracketed by annealed importance sampling elsewhere.

The path is E_beta(v, h) = 1/2 |(v-b)/sigma|^2 - beta (c + vW).h for beta from 0 to 1: at 0 v ~ N(b, sigma^2) and
log Z_0 = H log 2 + sum log(sigma) + D/2 log 2 pi.
"""

import math
from collections.abc import Callable
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import softplus

from eblvm.engine.models.energy import call
from eblvm.engine.models.grbm import GRBM
from eblvm.engine.types import Params
from eblvm.kernels import philox
from eblvm.kernels.philox import Key, Purpose, purpose

OnStep = Callable[[int], None]


class LogZ(NamedTuple):
    value: float
    standard_error: float  # 0 where exact


@torch.no_grad()
def log_likelihood(energy: GRBM, theta: Params, v: Tensor, log_z: float) -> float:
    """Mean over v of log p(v) = -F(v) - log Z."""
    return float(-call(energy, theta, "free_energy", v).mean()) - log_z


@torch.no_grad()
def exact_log_z(energy: GRBM, theta: Params) -> LogZ:
    return LogZ(float(call(energy, {k: p.double() for k, p in theta.items()}, "log_z")), 0.0)


@torch.no_grad()
def ais(
    energy: GRBM,
    theta: Params,
    key: Key,
    chains: int = 2000,
    temperatures: int = 2000,
    on_step: OnStep | None = None,
) -> LogZ:
    """log Z and its standard error by AIS (Neal 2001; Salakhutdinov & Murray 2008) from beta 0 to 1.

    With w = exp(sum over the path of F_beta(v) - F_beta'(v)), Z / Z_0 = E w. By Jensen E log mean w <= log Z / Z_0: a
    lower bound on log Z in expectation, and an upper bound on a log-likelihood.
    """
    W = theta["W"]
    noise = philox.normal(key, purpose(Purpose.AIS_V, 1), chains, (energy.visible,), dtype=W.dtype, device=W.device)
    v = theta["b"] + torch.exp(theta["log_sigma"]) * noise
    relative = _log_mean(_log_weights(theta, key, v, _path(temperatures), on_step))
    return LogZ(_log_z_start(energy, theta) + relative.value, relative.standard_error)


@torch.no_grad()
def reverse_ais(
    energy: GRBM,
    theta: Params,
    key: Key,
    v: Tensor,
    temperatures: int = 2000,
    on_step: OnStep | None = None,
) -> LogZ:
    """log Z and its standard error by AIS from beta 1 to 0, for chains that start at v [chains, D], samples of p(v)
    (Grosse et al. 2015).

    Along the path backwards Z_0 / Z = E 1/w, as the sweeps of p_beta(v) are reversible. Now Jensen gives an upper bound
    on log Z in expectation, and a lower bound on a log-likelihood: as far as v are samples of the model.
    """
    relative = _log_mean(_log_weights(theta, key, v, _path(temperatures)[::-1], on_step))
    return LogZ(_log_z_start(energy, theta) - relative.value, relative.standard_error)


def _path(temperatures: int) -> list[float]:
    return torch.linspace(0, 1, temperatures + 1, dtype=torch.float64).tolist()


def _log_weights(theta: Params, key: Key, v: Tensor, path: list[float], on_step: OnStep | None) -> Tensor:
    """sum over the path of F_beta(v) - F_beta'(v) [chains]; between two terms a sweep of Gibbs sampling at beta'."""
    b, c, W, sigma = theta["b"], theta["c"], theta["W"], torch.exp(theta["log_sigma"])
    place: dict[str, Any] = {"dtype": W.dtype, "device": W.device}
    D, H = W.shape
    log_weight = torch.zeros(len(v), dtype=torch.float64, device=W.device)
    for step, (beta, next_beta) in enumerate(pairwise(path)):
        x = torch.addmm(c, v, W)
        log_weight += (softplus(next_beta * x) - softplus(beta * x)).sum(-1, dtype=torch.float64)
        if step < len(path) - 2:  # the last state's v is never used
            step_key = Key(key.seed, key.step + step)
            u = philox.uniform(step_key, purpose(Purpose.AIS_H), len(v), (H,), **place)
            h = (u < torch.sigmoid(next_beta * x)).to(W.dtype)
            noise = philox.normal(step_key, purpose(Purpose.AIS_V), len(v), (D,), **place)
            v = b + next_beta * sigma.square() * (h @ W.T) + sigma * noise
        if on_step is not None:
            on_step(step)
    return log_weight


def _log_z_start(energy: GRBM, theta: Params) -> float:
    return energy.latent * math.log(2) + float(theta["log_sigma"].sum()) + 0.5 * energy.visible * math.log(2 * math.pi)


def _log_mean(log_weight: Tensor) -> LogZ:
    """log mean w and, by the delta method, its standard error."""
    log_mean = float(log_weight.logsumexp(0)) - math.log(len(log_weight))
    relative = torch.exp(log_weight - log_mean)
    return LogZ(log_mean, float(relative.std()) / math.sqrt(len(log_weight)))
