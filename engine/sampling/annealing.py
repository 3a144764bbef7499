"""Walks of a GRBM's chains along the path E_beta(v, h) = 1/2 |(v-b)/sigma|^2 - beta (c + vW).h, with their weights.

At beta 0 v ~ N(b, sigma^2), at 1 the model. Annealed importance sampling (Neal 2001) walks it once; a tempered
transition (Neal 1996) leaves the model for hotter temperatures and comes back.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, NamedTuple, TypeAlias

import torch

from eblvm.engine.types import Params
from eblvm.kernels import philox

Beta: TypeAlias = "float | torch.Tensor"  # one for all chains, or [chains, 1]
OnStep = Callable[[int], None]


class Walk(NamedTuple):
    v: torch.Tensor  # [chains, D], where the chains ended
    log_weight: torch.Tensor  # [chains] in fp64: sum over the path of F_beta(v) - F_beta'(v)


def walk(theta: Params, key: philox.Key, v: torch.Tensor, path: Sequence[Beta], on_step: OnStep | None = None) -> Walk:
    """Chains from v along `path`; between two terms of the weight a sweep of Gibbs sampling at the new beta."""
    softplus = torch.nn.functional.softplus
    with torch.no_grad():
        b, c, W, sigma = theta["b"], theta["c"], theta["W"], torch.exp(theta["log_sigma"])
        kwargs: dict[str, Any] = {"dtype": W.dtype, "device": W.device}
        D, H = W.shape
        log_weight = torch.zeros(len(v), dtype=torch.float64, device=W.device)
        for step, (beta, next_beta) in enumerate(pairwise(path)):
            x = torch.addmm(c, v, W)
            log_weight += (softplus(next_beta * x) - softplus(beta * x)).sum(-1, dtype=torch.float64)
            if step < len(path) - 2:  # the last v is weighted as it is
                step_key = philox.Key(key.seed, key.step + step)
                u = philox.uniform(step_key, philox.purpose(philox.Purpose.AIS_H), len(v), (H,), **kwargs)
                h = (u < torch.sigmoid(next_beta * x)).to(W.dtype)
                noise = philox.normal(step_key, philox.purpose(philox.Purpose.AIS_V), len(v), (D,), **kwargs)
                v = b + next_beta * sigma.square() * (h @ W.T) + sigma * noise
            if on_step is not None:
                on_step(step)
        return Walk(v, log_weight)


def straight_path(temperatures: int) -> list[float]:
    return torch.linspace(0, 1, temperatures + 1, dtype=torch.float64).tolist()


def annealed(theta: Params, key: philox.Key, chains: int, temperatures: int, on_step: OnStep | None = None) -> Walk:
    """Chains from N(b, sigma^2) at beta 0 to the model at 1; with their weights they are samples of it."""
    with torch.no_grad():
        b, sigma = theta["b"], torch.exp(theta["log_sigma"])
        purpose = philox.purpose(philox.Purpose.AIS_V, 1)
        noise = philox.normal(key, purpose, chains, tuple(b.shape), dtype=b.dtype, device=b.device)
        return walk(theta, key, b + sigma * noise, straight_path(temperatures), on_step)


def resampled(ends: Walk, key: philox.Key, count: int) -> torch.Tensor:
    """`count` states of a walk, each as often as its weight says (systematic resampling)."""
    cumulated = torch.softmax(ends.log_weight, 0).cumsum(0)
    u = philox.uniform(key, philox.purpose(philox.Purpose.EVAL, 5), 1, dtype=torch.float64, device=cumulated.device)
    places = (torch.arange(count, device=cumulated.device) + u) / count
    return ends.v[torch.searchsorted(cumulated, places).clamp(max=len(ends.v) - 1)]


def tempered(theta: Params, key: philox.Key, v: torch.Tensor, temperatures: int) -> torch.Tensor:
    """A tempered transition of each chain at v [chains, D], which leaves the model's distribution as it is.

    Chain i goes from beta 1 to i / chains and back, and stays there with probability min(1, weight): chains leave a
    mode for a heavier one, however far it is, and seldom for a lighter one.
    """
    with torch.no_grad():
        lowest = torch.arange(len(v), dtype=v.dtype, device=v.device)[:, None] / len(v)
        fall = torch.linspace(1, 0, max(2, temperatures // 2 + 1), dtype=v.dtype, device=v.device)
        down = [lowest + (1 - lowest) * t for t in fall]
        back = walk(theta, key, v, [*down, *reversed(down)])
        u = philox.uniform(key, philox.purpose(philox.Purpose.EVAL, 6), len(v), dtype=torch.float64, device=v.device)
        return torch.where((u.log() < back.log_weight)[:, None], back.v, v)
