"""Optimisers as pure functions, (params, grads, state) -> (params, state): differentiable, vmappable, compilable.

One optimiser object serves the real steps on phi, the unrolled ones and the steps on theta, so that the unroll follows
what training does. torch's own `Adam(differentiable=True)` has a NaN derivative where its second moment is zero;
`eps_root` under the square root removes it. `Adam.move` is the same step by the kernel, for real steps without a graph.
"""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from eblvm.engine.types import Params
from eblvm.kernels.adam_unroll import Rule, adam_unroll, adam_unroll_, clipped, decayed


class AdamState(NamedTuple):
    m: Params
    v: Params
    step_count: Tensor  # steps so far


Moments = AdamState | tuple[()]  # an optimiser's state; SGD has none


@dataclass(frozen=True)
class Adam:
    """m' = b1 m + (1-b1) g;  v' = b2 v + (1-b2) g^2;  x' = x - lr m^ / (sqrt(v^ + eps_root) + eps)  (Kingma & Ba).

    Weight decay is L2 in the gradient, g + weight_decay x."""

    betas: tuple[float, float] = (0.9, 0.95)
    eps: float = 1e-8
    eps_root: float = 1e-16
    weight_decay: float = 0.0

    @property
    def rule(self) -> Rule:
        """The constants as the kernels take them."""
        return Rule(*self.betas, self.eps, self.eps_root)

    def init(self, params: Params) -> AdamState:
        one = next(iter(params.values()))
        # m and v each of their own: a compiled step is compiled again where tensors stop to be the same one.
        m, v = ({k: torch.zeros_like(p) for k, p in params.items()} for _ in range(2))
        return AdamState(m, v, torch.zeros((), dtype=one.dtype, device=one.device))

    def step(self, params: Params, grads: Params, state: Moments, lr: Tensor) -> tuple[Params, Moments]:
        assert isinstance(state, AdamState)
        b1, b2 = self.betas
        step_count = state.step_count + 1
        adjusted = decayed(list(params.values()), [grads[k] for k in params], self.weight_decay)
        grads = dict(zip(params, adjusted, strict=True))
        rate, correct2 = lr / (1 - b1**step_count), 1 - b2**step_count
        m = {k: torch.lerp(state.m[k], g, 1 - b1) for k, g in grads.items()}
        v = {k: torch.addcmul(b2 * state.v[k], g, g, value=1 - b2) for k, g in grads.items()}
        moved = {
            k: torch.addcmul(p, rate, m[k] / (torch.sqrt(v[k] / correct2 + self.eps_root) + self.eps), value=-1)
            for k, p in params.items()
        }
        return moved, AdamState(m, v, step_count)

    def move(
        self,
        params: Params,
        grads: Params,
        state: Moments,
        lr: Tensor,
        in_place: bool = False,
        clip_norm: float | None = None,
    ) -> tuple[Params, AdamState, Tensor]:
        """`step` by the kernel at the gradient clipped to `clip_norm`, and the gradient's norm before; for any leading
        replica axes of lr. `in_place`: in the memory of params and moments."""
        assert isinstance(state, AdamState)
        p, g, m, v = ([tree[k] for k in params] for tree in (params, grads, state.m, state.v))
        if in_place:
            step_count, norm = adam_unroll_(p, g, m, v, state.step_count, lr, self.rule, self.weight_decay, clip_norm)
            return params, state._replace(step_count=step_count), norm
        step_count, (g, norm) = state.step_count + 1, clipped(g, lr.dim(), clip_norm)
        g = decayed(p, g, self.weight_decay)
        moved = [adam_unroll(*one, step_count, lr, self.rule) for one in zip(p, g, m, v, strict=True)]
        new, m_, v_ = (dict(zip(params, part, strict=True)) for part in zip(*moved, strict=True))
        return new, AdamState(m_, v_, step_count), norm


@dataclass(frozen=True)
class Sgd:
    """x' = x - lr g."""

    def step(self, params: Params, grads: Params, state: Moments, lr: Tensor) -> tuple[Params, Moments]:
        return {k: p - lr * grads[k] for k, p in params.items()}, ()


def averaged(average: Params, new: Params, decay: float | None, in_place: bool) -> Params:
    """A moving average one step on, decay * average + (1 - decay) * new; nothing where there is none."""
    place = Tensor.copy_ if in_place else lambda _, moved: moved
    return {k: place(e, torch.lerp(new[k], e, decay or 0.0)) for k, e in average.items()}
