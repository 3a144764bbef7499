"""log Z between a lower and an upper bound, or why it is not known.

AIS forth is a lower bound whatever its chains have missed; AIS back is an upper bound only from samples of the model.
So the bracket is given where chains from several starts agree and the bounds are in order.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from eblvm.engine.evaluation.metrics.likelihood import LogZ
from eblvm.engine.sampling.mixing import Mixing
from eblvm.engine.types import Params

ROUNDS = 20  # of coordinate ascent; its bound needs no convergence
SURE = 6.0  # nats: two true bounds are this far in the wrong order with a probability below 2 %


class Bracket(NamedTuple):
    lower: LogZ
    upper: LogZ | None
    reason: str | None  # why log Z is not known


def bracket(forth: LogZ, mode: float, back: LogZ | None, mixing: Mixing) -> Bracket:
    """From AIS forth and back, the bound of a single mode, and the mixing of the chains that AIS back started from."""
    lower = forth if forth.value >= mode else LogZ(mode, 0.0)
    if not math.isfinite(lower.value):
        return Bracket(lower, None, f"AIS gave {lower.value}; the model's parameters are too large for its chains")
    if mixing.problem is not None:
        return Bracket(lower, None, mixing.problem)
    if back is None or not math.isfinite(back.value):
        return Bracket(lower, None, "reverse AIS gave no finite value")
    errors = 4 * math.hypot(lower.standard_error, back.standard_error)
    if lower.value - back.value > min(SURE, 0.1 + errors):
        why = f"since {lower.value:.6g} is a lower one; its chains do not start in the dominant mode"
        return Bracket(lower, None, f"reverse AIS gives {back.value:.6g}, which is no upper bound, {why}")
    return Bracket(lower, back, None)


@torch.no_grad()
def mode_bound(theta: Params, v: Tensor) -> float:
    """The largest mean-field bound on log Z over the modes that the states v [n, D] lie in: deterministic, where AIS
    may have missed the mode altogether.

        log Z = log sum_h exp(a.h + 1/2 h.J h) + sum log sigma + D/2 log 2 pi,  a = c + W^T b,  J = W^T diag(sigma^2) W

    For independent h with means mu, whatever mu, Jensen gives log sum_h exp g(h) >= E g(h) + entropy."""
    b, c, W, log_sigma = (theta[k].double() for k in ("b", "c", "W", "log_sigma"))
    linear, coupling = c + W.T @ b, W.T @ (torch.exp(2 * log_sigma)[:, None] * W)
    own = coupling.diagonal()
    mu = torch.sigmoid(c + v.double() @ W)
    for _ in range(ROUNDS):
        for j in range(len(linear)):
            mu[:, j] = torch.sigmoid(linear[j] + mu @ coupling[:, j] - own[j] * mu[:, j] + 0.5 * own[j])
    entropy = -(torch.special.xlogy(mu, mu) + torch.special.xlogy(1 - mu, 1 - mu)).sum(1)
    bound = mu @ linear + 0.5 * ((mu @ coupling * mu).sum(1) + (mu * (1 - mu)) @ own) + entropy
    return float(bound.max()) + (float(log_sigma.sum()) + 0.5 * len(b) * math.log(2 * math.pi))
