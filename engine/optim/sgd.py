"""Stochastic gradient descent: with momentum (Polyak 1964) for training, plain for unrolled steps."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from eblvm.engine.optim.base import Moments, Optimizer, Weights, rate_over
from eblvm.engine.types import Params


@dataclass(frozen=True)
class Momentum(Optimizer):
    """m' = momentum m + g;  x' = x - lr m'."""

    keeps = "m"
    momentum: float = 0.9

    def updated(self, weights: Weights, gradient: Params, lr: torch.Tensor) -> Weights:
        params, (m, _, step_count), _ = weights
        m = {k: self.momentum * m[k] + g for k, g in gradient.items()}
        params = {k: p - rate_over(lr, p) * m[k] for k, p in params.items()}
        return weights._replace(params=params, moments=Moments(m, {}, step_count + 1))


@dataclass(frozen=True)
class Sgd(Optimizer):
    """x' = x - lr g."""

    keeps = ""

    def updated(self, weights: Weights, gradient: Params, lr: torch.Tensor) -> Weights:
        moments = weights.moments._replace(step_count=weights.moments.step_count + 1)
        return weights._replace(params={k: p - lr * gradient[k] for k, p in weights.params.items()}, moments=moments)
