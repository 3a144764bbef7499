"""Lower bounds on a GRBM's log Z by single modes: deterministic, where AIS may have missed the mode altogether.

    log Z = log sum_h exp(a.h + 1/2 h.J h) + sum log sigma + D/2 log 2 pi,   a = c + W^T b,   J = W^T diag(sigma^2) W

For independent h with means mu, Jensen gives log sum_h exp g(h) >= E g(h) + entropy (mean field). It holds for any mu.
"""

import math

import torch
from torch import Tensor

from eblvm.engine.types import Params

ROUNDS = 20  # of coordinate ascent; the bound needs no convergence


@torch.no_grad()
def mode_bound(theta: Params, v: Tensor) -> float:
    """The largest mean-field bound over the modes that the states v [n, D] lie in."""
    b, c, W, log_sigma = (theta[k].double() for k in ("b", "c", "W", "log_sigma"))
    linear, coupling = c + W.T @ b, W.T @ (torch.exp(2 * log_sigma)[:, None] * W)
    own = coupling.diagonal()
    mu = torch.sigmoid(c + v.double() @ W)
    for _ in range(ROUNDS):
        for j in range(len(linear)):
            field = linear[j] + mu @ coupling[:, j] - own[j] * mu[:, j] + 0.5 * own[j]
            mu[:, j] = torch.sigmoid(field)
    bound = mu @ linear + 0.5 * ((mu @ coupling * mu).sum(1) + (mu * (1 - mu)) @ own) + _entropy(mu)
    constant = float(log_sigma.sum()) + 0.5 * len(b) * math.log(2 * math.pi)
    return float(bound.max()) + constant


def _entropy(mu: Tensor) -> Tensor:
    return -(torch.special.xlogy(mu, mu) + torch.special.xlogy(1 - mu, 1 - mu)).sum(1)
