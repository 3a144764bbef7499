"""Optimisers as pure functions, (params, grads, state) -> (params, state): differentiable, vmappable, compilable.

One optimiser object serves the real steps on phi, the unrolled ones and the steps on theta, so that the unroll follows
what training does. torch's own `Adam(differentiable=True)` has a NaN derivative where its second moment is zero;
`eps_root` under the square root removes it. `Adam.move` is the same step by the kernel, for real steps without a graph.
"""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from eblvm.engine.models.energy import Params
from eblvm.kernels.adam_unroll import Rule, adam_unroll, adam_unroll_


class AdamState(NamedTuple):
    m: Params
    v: Params
    taken: Tensor  # steps so far


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
        taken = state.taken + 1
        grads = self._decayed(params, grads)
        rate, correct2 = lr / (1 - b1**taken), 1 - b2**taken
        m = {k: torch.lerp(state.m[k], g, 1 - b1) for k, g in grads.items()}
        v = {k: torch.addcmul(b2 * state.v[k], g, g, value=1 - b2) for k, g in grads.items()}
        moved = {
            k: torch.addcmul(p, rate, m[k] / (torch.sqrt(v[k] / correct2 + self.eps_root) + self.eps), value=-1)
            for k, p in params.items()
        }
        return moved, AdamState(m, v, taken)

    def move(
        self, params: Params, grads: Params, state: Moments, lr: Tensor, in_place: bool = False
    ) -> tuple[Params, AdamState]:
        """`step` by the kernel, for any leading replica axes of lr; `in_place` in the memory of params and moments."""
        assert isinstance(state, AdamState)
        taken, kernel = state.taken + 1, adam_unroll_ if in_place else adam_unroll
        grads = self._decayed(params, grads)
        moved = {k: kernel(p, grads[k], state.m[k], state.v[k], taken, lr, self.rule) for k, p in params.items()}
        new, m, v = ({k: moved[k][i] for k in moved} for i in range(3))
        return new, AdamState(m, v, taken)

    def _decayed(self, params: Params, grads: Params) -> Params:
        if not self.weight_decay:
            return grads
        return {k: torch.add(g, params[k], alpha=self.weight_decay) for k, g in grads.items()}


@dataclass(frozen=True)
class Sgd:
    """x' = x - lr g."""

    def step(self, params: Params, grads: Params, state: Moments, lr: Tensor) -> tuple[Params, Moments]:
        return {k: p - lr * grads[k] for k, p in params.items()}, ()
