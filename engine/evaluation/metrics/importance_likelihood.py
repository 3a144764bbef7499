"""log p~(v) = log sum_h exp(-E(v, h)) of an energy without a tractable marginal, by importance sampling from q(h|v).

    log p^(v) = log 1/L sum_l exp(-E(v, h_l) - log q(h_l|v)),   h_l ~ q(h|v)

p^ is unbiased, so by Jensen E log p^ <= log p~: a lower bound on the log density and an upper bound on the free energy,
tighter with every sample (Burda et al. 2016). A posterior that leaves a constant out of log q shifts all v alike.
"""

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from eblvm.engine.nets.base import Energy
from eblvm.engine.nets.posteriors import Posterior
from eblvm.engine.types import Params
from eblvm.kernels.philox import Key, Purpose, purpose


class LogDensity(NamedTuple):
    value: Tensor  # [B], up to a constant of the model
    standard_error: Tensor  # [B], 0 where exact


def log_density(
    energy: Energy, theta: Params, posterior: Posterior, phi: Params, v: Tensor, key: Key, samples: int, first: int = 0
) -> Tensor:
    """log p^(v) [B] in fp64 for v [B, ...], global indices first .. first + B - 1.

    h and log q(h|v) are constants: the derivative by v is -sum_l w_l grad_v E(v, h_l) with the weights normalised, the
    importance-sampled score."""
    return _log_mean(_log_weights(energy, theta, posterior, phi, v, key, samples, first))


@torch.no_grad()
def importance_weighted(
    energy: Energy, theta: Params, posterior: Posterior, phi: Params, v: Tensor, key: Key, samples: int, first: int = 0
) -> LogDensity:
    """`log_density` and its error by the delta method: the deviation of the weights over their mean, over sqrt(L)."""
    log_weight_LB = _log_weights(energy, theta, posterior, phi, v, key, samples, first)
    log_mean = _log_mean(log_weight_LB)
    deviation = torch.exp(log_weight_LB - log_mean).std(0) if samples > 1 else torch.full_like(log_mean, math.inf)
    return LogDensity(log_mean, deviation / math.sqrt(samples))


def _log_weights(
    energy: Energy, theta: Params, posterior: Posterior, phi: Params, v: Tensor, key: Key, samples: int, first: int
) -> Tensor:
    """-E(v, h_l) - log q(h_l|v), [L, B] in fp64. A binary h is drawn from q itself: q is the proposal's density, and
    not that of relaxed samples."""
    energy, posterior = energy.at(theta), posterior.at(phi)
    kwargs: dict[str, Any] = {"first": first, "dtype": v.dtype, "device": v.device}
    noise = posterior.noise(key, purpose(Purpose.EVAL, 3), len(v), (samples, posterior.latent), **kwargs).movedim(1, 0)
    with torch.no_grad():
        p = posterior.params(v)
        h = posterior.sample(p, noise)
        log_q = posterior.log_prob(p, h)
    return (-energy.head(energy.features(v), h) - log_q).double()


def _log_mean(log_weight_LB: Tensor) -> Tensor:
    return log_weight_LB.logsumexp(0) - math.log(len(log_weight_LB))
