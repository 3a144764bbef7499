"""Log-likelihoods of a GRBM: exact where h can be enumerated, by annealed importance sampling (AIS) elsewhere."""

import math
from collections.abc import Callable
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import softplus

from eblvm.engine.models.energy import Params, call
from eblvm.engine.models.grbm import GRBM
from eblvm.kernels import philox
from eblvm.kernels.philox import Key, Purpose, purpose


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
    on_step: Callable[[int], None] | None = None,
) -> LogZ:
    """log Z and its standard error by AIS (Neal 2001; Salakhutdinov & Murray 2008).

    The path is E_beta(v, h) = 1/2 |(v-b)/sigma|^2 - beta (c + vW).h for beta from 0 to 1: at 0 v ~ N(b, sigma^2) and
    log Z_0 = H log 2 + sum log(sigma) + D/2 log 2 pi. Weight: sum over the path of F_{beta}(v) - F_{beta'}(v).
    """
    b, c, W = theta["b"], theta["c"], theta["W"]
    sigma = torch.exp(theta["log_sigma"])
    place: dict[str, Any] = {"dtype": W.dtype, "device": W.device}
    betas = torch.linspace(0, 1, temperatures + 1, dtype=torch.float64).tolist()

    v = b + sigma * philox.normal(key, purpose(Purpose.AIS_V, 1), chains, (energy.visible,), **place)
    log_weight = torch.zeros(chains, dtype=torch.float64, device=W.device)
    for step, (beta, next_beta) in enumerate(pairwise(betas)):
        x = torch.addmm(c, v, W)
        log_weight += (softplus(next_beta * x) - softplus(beta * x)).sum(-1, dtype=torch.float64)
        if step < temperatures - 1:  # the last state's v is never used
            step_key = Key(key.seed, key.step + step)
            u = philox.uniform(step_key, purpose(Purpose.AIS_H), chains, (energy.latent,), **place)
            h = (u < torch.sigmoid(next_beta * x)).to(W.dtype)
            noise = philox.normal(step_key, purpose(Purpose.AIS_V), chains, (energy.visible,), **place)
            v = b + next_beta * sigma.square() * (h @ W.T) + sigma * noise
        if on_step is not None:
            on_step(step)

    log_z0 = (
        energy.latent * math.log(2) + float(theta["log_sigma"].sum()) + 0.5 * energy.visible * math.log(2 * math.pi)
    )
    log_mean = float(log_weight.logsumexp(0)) - math.log(chains)
    relative = torch.exp(log_weight - log_mean)
    return LogZ(log_z0 + log_mean, float(relative.std()) / math.sqrt(chains))
