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
from eblvm.kernels.adam_unroll import Rule, adam_steps, adam_unroll, adam_unroll_, clipped, decayed, serves_lists


class AdamState(NamedTuple):
    m: Params
    v: Params
    step_count: Tensor  # steps so far


Moments = AdamState | tuple[()]  # an optimiser's state; plain SGD has none


@dataclass(frozen=True)
class Optimizer:
    """The contract: `init` makes the state, `step` is pure, `move` is a step that ends a graph."""

    def init(self, params: Params) -> AdamState:
        raise NotImplementedError

    def step(self, params: Params, grads: Params, state: Moments, lr: Tensor) -> tuple[Params, Moments]:
        raise NotImplementedError

    def move(
        self,
        params: Params,
        grads: Params,
        state: Moments,
        lr: Tensor,
        in_place: bool = False,
        clip_norm: float | None = None,
    ) -> tuple[Params, AdamState, Tensor]:
        """`step` at the gradient clipped to `clip_norm`, and the gradient's norm before; for any leading replica axes
        of lr. `in_place`: in the memory of params and moments."""
        assert isinstance(state, AdamState)
        adjusted, norm = clipped([grads[k] for k in params], lr.dim(), clip_norm)
        new, moved = self.step(params, dict(zip(params, adjusted, strict=True)), state, lr)
        assert isinstance(moved, AdamState)
        if in_place:
            for old_tree, new_tree in ((params, new), (state.m, moved.m), (state.v, moved.v)):
                for k, x in new_tree.items():
                    old_tree[k].copy_(x)
            return params, state._replace(step_count=moved.step_count), norm
        return new, moved, norm


@dataclass(frozen=True)
class Adam(Optimizer):
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
        adjusted = decayed(list(params.values()), [grads[k] for k in params], self.weight_decay)
        if serves_lists(adjusted[0]):  # one launch for all tensors
            p, m_, v_ = ([tree[k] for k in params] for tree in (params, state.m, state.v))
            *moved_lists, step_count = adam_steps(p, adjusted, m_, v_, state.step_count, lr, self.rule)
            new, m, v = (dict(zip(params, part, strict=True)) for part in moved_lists)
            return new, AdamState(m, v, step_count)
        grads = dict(zip(params, adjusted, strict=True))
        step_count = state.step_count + 1
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
        average: Params | None = None,
        decay: float = 0.0,
        go: Tensor | None = None,
    ) -> tuple[Params, AdamState, Tensor]:
        """`step` by the kernel at the gradient clipped to `clip_norm`, and the gradient's norm before; for any leading
        replica axes of lr. `in_place`: in the memory of params and moments, and of their moving average."""
        assert isinstance(state, AdamState)
        p, g, m, v = ([tree[k] for k in params] for tree in (params, grads, state.m, state.v))
        if in_place:
            e = [average[k] for k in params] if average else []
            step_count, norm = adam_unroll_(
                p, g, m, v, state.step_count, lr, self.rule, self.weight_decay, clip_norm, e, decay, go
            )
            return params, state._replace(step_count=step_count), norm
        step_count, (g, norm) = state.step_count + 1, clipped(g, lr.dim(), clip_norm)
        g = decayed(p, g, self.weight_decay)
        moved = [adam_unroll(*one, step_count, lr, self.rule) for one in zip(p, g, m, v, strict=True)]
        new, m_, v_ = (dict(zip(params, part, strict=True)) for part in zip(*moved, strict=True))
        return new, AdamState(m_, v_, step_count), norm


@dataclass(frozen=True)
class RmsProp(Optimizer):
    """v' = decay v + (1-decay) g^2;  x' = x - lr g / (sqrt(v' + eps_root) + eps)  (Tieleman & Hinton 2012)."""

    decay: float = 0.95
    eps: float = 1e-8
    eps_root: float = 1e-16
    weight_decay: float = 0.0

    def init(self, params: Params) -> AdamState:
        return Adam().init(params)._replace(m={})

    def step(self, params: Params, grads: Params, state: Moments, lr: Tensor) -> tuple[Params, Moments]:
        assert isinstance(state, AdamState)
        adjusted = decayed(list(params.values()), [grads[k] for k in params], self.weight_decay)
        v = {
            k: torch.addcmul(self.decay * state.v[k], g, g, value=1 - self.decay)
            for k, g in zip(params, adjusted, strict=True)
        }
        scaled = (g / (torch.sqrt(v[k] + self.eps_root) + self.eps) for k, g in zip(params, adjusted, strict=True))
        moved = {k: p - _rate(lr, p) * d for (k, p), d in zip(params.items(), scaled, strict=True)}
        return moved, AdamState({}, v, state.step_count + 1)


@dataclass(frozen=True)
class Momentum(Optimizer):
    """m' = momentum m + g;  x' = x - lr m'  (Polyak 1964)."""

    momentum: float = 0.9
    weight_decay: float = 0.0

    def init(self, params: Params) -> AdamState:
        return Adam().init(params)._replace(v={})

    def step(self, params: Params, grads: Params, state: Moments, lr: Tensor) -> tuple[Params, Moments]:
        assert isinstance(state, AdamState)
        adjusted = decayed(list(params.values()), [grads[k] for k in params], self.weight_decay)
        m = {k: self.momentum * state.m[k] + g for k, g in zip(params, adjusted, strict=True)}
        return {k: p - _rate(lr, p) * m[k] for k, p in params.items()}, AdamState(m, {}, state.step_count + 1)


def _rate(lr: Tensor, p: Tensor) -> Tensor:
    """lr beside p: its axes are p's first ones, the replicas."""
    return lr.view(*lr.shape, *[1] * (p.dim() - lr.dim()))


@dataclass(frozen=True)
class Sgd:
    """x' = x - lr g."""

    def step(self, params: Params, grads: Params, state: Moments, lr: Tensor) -> tuple[Params, Moments]:
        return {k: p - lr * grads[k] for k, p in params.items()}, ()


def averaged(average: Params, new: Params, decay: float | None, in_place: bool) -> Params:
    """A moving average one step on, decay * average + (1 - decay) * new; nothing where there is none."""
    place = Tensor.copy_ if in_place else lambda _, moved: moved
    return {k: place(e, torch.lerp(new[k], e, decay or 0.0)) for k, e in average.items()}
