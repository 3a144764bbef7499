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


@torch.no_grad()
def importance_weighted(
    energy: Energy, theta: Params, posterior: Posterior, phi: Params, v: Tensor, key: Key, samples: int, first: int = 0
) -> LogDensity:
    """The bound for v [B, ...], global indices first .. first + B - 1, and its error by the delta method: the
    deviation of the weights over their mean, over sqrt(L)."""
    kwargs: dict[str, Any] = {"first": first, "dtype": v.dtype, "device": v.device}
    noise = posterior.noise(key, purpose(Purpose.EVAL, 3), len(v), (samples, posterior.latent), **kwargs).movedim(1, 0)
    p = posterior.at(phi).params(v)
    h = posterior.rsample(p, noise)
    f = energy.at(theta).features(v)
    log_weight = (-energy.at(theta).head(f, h) - posterior.log_prob(p, h)).double()
    log_mean = log_weight.logsumexp(0) - math.log(samples)
    deviation = torch.exp(log_weight - log_mean).std(0) if samples > 1 else torch.full_like(log_mean, math.inf)
    return LogDensity(log_mean, deviation / math.sqrt(samples))
