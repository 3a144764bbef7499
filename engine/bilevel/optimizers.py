"""Optimisers as pure functions, (params, grads, state) -> (params, state): differentiable, vmappable, compilable.

One optimiser object serves the real steps on phi, the unrolled ones and the steps on theta, so that the unroll follows
what training does. torch's own `Adam(differentiable=True)` has a NaN derivative where its second moment is zero;
`eps_root` under the square root removes it.
"""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from eblvm.engine.models.energy import Params


class AdamState(NamedTuple):
    m: Params
    v: Params
    count: Tensor  # how many steps were taken


@dataclass(frozen=True)
class Adam:
    """m' = b1 m + (1-b1) g;  v' = b2 v + (1-b2) g^2;  x' = x - lr m^ / (sqrt(v^ + eps_root) + eps)  (Kingma & Ba)."""

    betas: tuple[float, float] = (0.9, 0.95)
    eps: float = 1e-8
    eps_root: float = 1e-16

    def init(self, params: Params) -> AdamState:
        one = next(iter(params.values()))
        zeros = {k: torch.zeros_like(p) for k, p in params.items()}
        return AdamState(zeros, dict(zeros), torch.zeros((), dtype=one.dtype, device=one.device))

    def step(self, params: Params, grads: Params, state: AdamState, lr: Tensor) -> tuple[Params, AdamState]:
        b1, b2 = self.betas
        count = state.count + 1
        correct1, correct2 = 1 - b1**count, 1 - b2**count
        m = {k: b1 * state.m[k] + (1 - b1) * g for k, g in grads.items()}
        v = {k: b2 * state.v[k] + (1 - b2) * g.square() for k, g in grads.items()}
        moved = {
            k: p - (lr / correct1) * m[k] / (torch.sqrt(v[k] / correct2 + self.eps_root) + self.eps)
            for k, p in params.items()
        }
        return moved, AdamState(m, v, count)


@dataclass(frozen=True)
class Sgd:
    """x' = x - lr g. Passes an Adam state through untouched, so that it can stand in for Adam in the unroll."""

    def step(self, params: Params, grads: Params, state: AdamState, lr: Tensor) -> tuple[Params, AdamState]:
        return {k: p - lr * grads[k] for k, p in params.items()}, state
