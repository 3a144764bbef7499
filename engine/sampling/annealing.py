"""Walks of a GRBM's chains along the path E_beta(v, h) = 1/2 |(v-b)/sigma|^2 - beta (c + vW).h, with their weights.

At beta 0 v ~ N(b, sigma^2), at 1 the model. Annealed importance sampling (Neal 2001) walks it once; a tempered
transition (Neal 1996) leaves the model for hotter temperatures and comes back.
"""

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import softplus

from eblvm.engine.types import Params
from eblvm.kernels import philox
from eblvm.kernels.philox import Key, Purpose, purpose

OnStep = Callable[[int], None]
Beta = float | Tensor  # one for all chains, or [chains, 1]


class Walk(NamedTuple):
    v: Tensor  # [chains, D], where the chains ended
    log_weight: Tensor  # [chains] in fp64: sum over the path of F_beta(v) - F_beta'(v)


@torch.no_grad()
def walk(theta: Params, key: Key, v: Tensor, path: Sequence[Beta], on_step: OnStep | None = None) -> Walk:
    """Chains from v along `path`; between two terms of the weight a sweep of Gibbs sampling at the new beta."""
    b, c, W, sigma = theta["b"], theta["c"], theta["W"], torch.exp(theta["log_sigma"])
    kwargs: dict[str, Any] = {"dtype": W.dtype, "device": W.device}
    D, H = W.shape
    log_weight = torch.zeros(len(v), dtype=torch.float64, device=W.device)
    for step, (beta, next_beta) in enumerate(pairwise(path)):
        x = torch.addmm(c, v, W)
        log_weight += (softplus(next_beta * x) - softplus(beta * x)).sum(-1, dtype=torch.float64)
        if step < len(path) - 2:  # the last v is weighted as it is
            step_key = Key(key.seed, key.step + step)
            u = philox.uniform(step_key, purpose(Purpose.AIS_H), len(v), (H,), **kwargs)
            h = (u < torch.sigmoid(next_beta * x)).to(W.dtype)
            noise = philox.normal(step_key, purpose(Purpose.AIS_V), len(v), (D,), **kwargs)
            v = b + next_beta * sigma.square() * (h @ W.T) + sigma * noise
        if on_step is not None:
            on_step(step)
    return Walk(v, log_weight)


def straight_path(temperatures: int) -> list[float]:
    return torch.linspace(0, 1, temperatures + 1, dtype=torch.float64).tolist()


@torch.no_grad()
def annealed(theta: Params, key: Key, chains: int, temperatures: int, on_step: OnStep | None = None) -> Walk:
    """Chains from N(b, sigma^2) at beta 0 to the model at 1; with their weights they stand for samples of it."""
    b, sigma = theta["b"], torch.exp(theta["log_sigma"])
    noise = philox.normal(key, purpose(Purpose.AIS_V, 1), chains, tuple(b.shape), dtype=b.dtype, device=b.device)
    return walk(theta, key, b + sigma * noise, straight_path(temperatures), on_step)


def resampled(found: Walk, key: Key, count: int) -> Tensor:
    """`count` states of a walk, each as often as its weight says (systematic resampling)."""
    cumulated = torch.softmax(found.log_weight, 0).cumsum(0)
    u = philox.uniform(key, purpose(Purpose.EVAL, 5), 1, dtype=torch.float64, device=cumulated.device)
    places = (torch.arange(count, device=cumulated.device) + u) / count
    return found.v[torch.searchsorted(cumulated, places).clamp(max=len(found.v) - 1)]


@torch.no_grad()
def tempered(theta: Params, key: Key, v: Tensor, temperatures: int) -> Tensor:
    """A tempered transition of each chain at v [chains, D], which leaves the model's distribution as it is.

    Chain i goes from beta 1 to i / chains and back, and stays there with probability min(1, weight): chains leave a
    mode for a heavier one, however far it is, and seldom for a lighter one.
    """
    lowest = torch.arange(len(v), dtype=v.dtype, device=v.device)[:, None] / len(v)
    fall = torch.linspace(1, 0, max(2, temperatures // 2 + 1), dtype=v.dtype, device=v.device)
    down = [lowest + (1 - lowest) * t for t in fall]
    found = walk(theta, key, v, [*down, *reversed(down)])
    u = philox.uniform(key, purpose(Purpose.EVAL, 6), len(v), dtype=torch.float64, device=v.device)
    return torch.where((u.log() < found.log_weight)[:, None], found.v, v)
