"""RMSProp (Tieleman & Hinton 2012)."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from eblvm.engine.optim.base import Moments, Optimizer, Weights, rate_over
from eblvm.engine.types import Params


@dataclass(frozen=True)
class RmsProp(Optimizer):
    """v' = decay v + (1-decay) g^2;  x' = x - lr g / (sqrt(v' + eps_root) + eps)."""

    keeps = "v"
    decay: float = 0.95
    eps: float = 1e-8
    eps_root: float = 1e-16

    def updated(self, weights: Weights, gradient: Params, lr: torch.Tensor) -> Weights:
        params, (_, v, step_count), _ = weights
        v = {k: torch.addcmul(self.decay * v[k], g, g, value=1 - self.decay) for k, g in gradient.items()}
        scaled = {k: g / (torch.sqrt(v[k] + self.eps_root) + self.eps) for k, g in gradient.items()}
        params = {k: p - rate_over(lr, p) * scaled[k] for k, p in params.items()}
        return weights._replace(params=params, moments=Moments({}, v, step_count + 1))
