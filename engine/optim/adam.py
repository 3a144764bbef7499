"""Adam (Kingma & Ba 2015), and RMSProp (Tieleman & Hinton 2012).

torch's own `Adam(differentiable=True)` has a NaN derivative where its second moment is zero; `eps_root` under the
square root removes it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from eblvm.engine.optim.base import Moments, Optimizer, Weights, averaged, rate_over
from eblvm.engine.types import Params
from eblvm.kernels import adam_unroll

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Adam(Optimizer):
    """m' = b1 m + (1-b1) g;  v' = b2 v + (1-b2) g^2;  x' = x - lr m^ / (sqrt(v^ + eps_root) + eps)."""

    betas: tuple[float, float] = (0.9, 0.95)
    eps: float = 1e-8
    eps_root: float = 1e-16

    @property
    def rule(self) -> adam_unroll.Rule:
        """The constants as the kernels take them."""
        return adam_unroll.Rule(*self.betas, self.eps, self.eps_root)

    def updated(self, weights: Weights, gradient: Params, lr: Tensor) -> Weights:
        params, (m, v, step_count), _ = weights
        b1, b2 = self.betas
        if adam_unroll.serves_lists(next(iter(gradient.values()))):  # one launch for all tensors
            p_, g_, m_, v_ = ([tree[k] for k in params] for tree in (params, gradient, m, v))
            *moved, step_count = adam_unroll.adam_steps(p_, g_, m_, v_, step_count, lr, self.rule)
            params, m, v = (dict(zip(params, part, strict=True)) for part in moved)
            return weights._replace(params=params, moments=Moments(m, v, step_count))
        step_count = step_count + 1
        rate, correct2 = lr / (1 - b1**step_count), 1 - b2**step_count
        m = {k: torch.lerp(m[k], g, 1 - b1) for k, g in gradient.items()}
        v = {k: torch.addcmul(b2 * v[k], g, g, value=1 - b2) for k, g in gradient.items()}
        params = {
            k: torch.addcmul(p, rate, m[k] / (torch.sqrt(v[k] / correct2 + self.eps_root) + self.eps), value=-1)
            for k, p in params.items()
        }
        return weights._replace(params=params, moments=Moments(m, v, step_count))

    def move(
        self, weights: Weights, gradient: Params, lr: Tensor, *, in_place: bool = False, go: Tensor | None = None
    ) -> tuple[Weights, Tensor]:
        """As `Optimizer.move`, by the kernel; in place on a GPU without waiting for `go`."""
        params, (m, v, step_count), average = weights
        p, g, m_, v_ = ([tree[k] for k in params] for tree in (params, gradient, m, v))
        if in_place:
            means = [average[k] for k in params] if average and self.average is not None else []
            how = self.rule, self.weight_decay, self.clip_norm, means, self.average or 0.0, go
            step_count, norm = adam_unroll.adam_unroll_(p, g, m_, v_, step_count, lr, *how)
            return weights._replace(moments=Moments(m, v, step_count)), norm
        g, norm = adam_unroll.clipped(g, lr.dim(), self.clip_norm)
        if go is not None and not go:
            return weights, norm
        step_count = step_count + 1
        g = adam_unroll.decayed(p, g, self.weight_decay)
        moved = [adam_unroll.adam_unroll(*one, step_count, lr, self.rule) for one in zip(p, g, m_, v_, strict=True)]
        params, m, v = (dict(zip(params, part, strict=True)) for part in zip(*moved, strict=True))
        new = weights._replace(params=params, moments=Moments(m, v, step_count))
        return new if self.average is None else averaged(new, self.average, in_place), norm


@dataclass(frozen=True)
class RmsProp(Optimizer):
    """v' = decay v + (1-decay) g^2;  x' = x - lr g / (sqrt(v' + eps_root) + eps)."""

    keeps = "v"
    decay: float = 0.95
    eps: float = 1e-8
    eps_root: float = 1e-16

    def updated(self, weights: Weights, gradient: Params, lr: Tensor) -> Weights:
        params, (_, v, step_count), _ = weights
        v = {k: torch.addcmul(self.decay * v[k], g, g, value=1 - self.decay) for k, g in gradient.items()}
        scaled = {k: g / (torch.sqrt(v[k] + self.eps_root) + self.eps) for k, g in gradient.items()}
        params = {k: p - rate_over(lr, p) * scaled[k] for k, p in params.items()}
        return weights._replace(params=params, moments=Moments({}, v, step_count + 1))
