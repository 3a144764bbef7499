"""The contract of an optimiser: pure functions of weights, which can be differentiated, vmapped and compiled.

One optimiser of phi makes its real steps and the unrolled ones, so that the unroll follows what training does.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, NamedTuple

import torch

from eblvm.engine.types import Params
from eblvm.kernels import adam_unroll

if TYPE_CHECKING:
    from torch import Tensor


class Moments(NamedTuple):
    """Running means of the gradient and of its square, each empty where an optimiser keeps none."""

    m: Params
    v: Params
    step_count: Tensor  # steps so far


class Weights(NamedTuple):
    """Parameters and what moves with them: their moments, and their moving average, empty without one."""

    params: Params
    moments: Moments
    average: Params = {}  # noqa: RUF012


@dataclass(frozen=True)
class Optimizer:
    """The contract: `init` makes weights, `step` is pure and differentiable, `move` ends a graph."""

    weight_decay: float = field(default=0.0, kw_only=True)  # L2 in the gradient, g + weight_decay x
    clip_norm: float | None = field(default=None, kw_only=True)  # the longest gradient
    average: float | None = field(default=None, kw_only=True)  # decay of the moving average, which `move` keeps
    keeps: ClassVar[str] = "mv"  # its moments

    def init(self, params: Params) -> Weights:
        """Return the weights at the start of a run."""
        # m and v are tensors of their own: a compiled step is compiled again where two leaves stop to be one tensor.
        m, v = ({k: torch.zeros_like(p) for k, p in params.items() if kept in self.keeps} for kept in "mv")
        one = next(iter(params.values()), torch.zeros(()))
        return Weights(params, Moments(m, v, torch.zeros((), dtype=one.dtype, device=one.device)))

    def updated(self, weights: Weights, gradient: Params, lr: Tensor) -> Weights:
        """Return the weights one step on by the optimiser's own formula, differentiable in weights and gradient."""
        raise NotImplementedError

    def step(self, weights: Weights, gradient: Params, lr: Tensor) -> Weights:
        """Return the weights one step on; their average stays as it is."""
        if self.clip_norm is not None:
            gradient, _ = self.clipped(gradient, 0)
        return self.updated(weights, self.decayed(weights.params, gradient), lr)

    def move(
        self, weights: Weights, gradient: Params, lr: Tensor, *, in_place: bool = False, go: Tensor | None = None
    ) -> tuple[Weights, Tensor]:
        """Return the weights one step on, and the norm of the gradient before it is clipped. Leading axes of lr, and so
        of all tensors, are replicas. `in_place` moves the tensors of `weights`, which are spent then. With `go`, a bool
        on the device, nothing moves where it is false."""
        gradient, norm = self.clipped(gradient, lr.dim())
        if go is not None and not go:
            return weights, norm
        new = self.updated(weights, self.decayed(weights.params, gradient), lr)
        if in_place:
            m, v = _copied(weights.moments.m, new.moments.m), _copied(weights.moments.v, new.moments.v)
            new = Weights(_copied(weights.params, new.params), Moments(m, v, new.moments.step_count), weights.average)
        return new if self.average is None else averaged(new, self.average, in_place), norm

    def clipped(self, gradient: Params, replicas: int) -> tuple[Params, Tensor]:
        """Return the gradient scaled down to `clip_norm`, and its norm before; `replicas` counts leading axes."""
        scaled, norm = adam_unroll.clipped(list(gradient.values()), replicas, self.clip_norm)
        return dict(zip(gradient, scaled, strict=True)), norm

    def decayed(self, params: Params, gradient: Params) -> Params:
        """Return the gradient with that of weight_decay/2 |x|^2."""
        if not self.weight_decay:
            return gradient
        both = list(params.values()), [gradient[k] for k in params]
        return dict(zip(params, adam_unroll.decayed(*both, self.weight_decay), strict=True))


def averaged(weights: Weights, decay: float | Tensor, in_place: bool) -> Weights:
    """Return weights whose moving average, if they have one, is a step on: decay * average + (1 - decay) * params."""
    moved = {k: torch.lerp(weights.params[k], e, decay) for k, e in weights.average.items()}
    return weights._replace(average=_copied(weights.average, moved) if in_place else moved)


def _copied(places: Params, values: Params) -> Params:
    for k, x in values.items():
        places[k].copy_(x)
    return places


def rate_over(lr: Tensor, p: Tensor) -> Tensor:
    """Return lr in a shape that broadcasts over p: its axes are p's first ones, the replicas."""
    return lr.view(*lr.shape, *[1] * (p.dim() - lr.dim()))
