"""The differentiable Adam step: what an unrolled lower step does to phi, with its reverse in one pass.

    m' = b1 m + (1-b1) g;  v' = b2 v + (1-b2) g^2;  p' = p - lr/c1 m' / (sqrt(v'/c2 + eps_root) + eps);  ci = 1 - bi^t

README.md derives the reverse. It saves (g, m, v), three times the parameters a step, and no intermediate.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from eblvm.kernels.adam_unroll import reference
from eblvm.kernels.adam_unroll.reference import Rule, clipped, decayed
from eblvm.kernels.common.dispatch import Backend, backend_for, native_status, op_backends
from eblvm.kernels.common.orders import by_reference, order

__all__ = ["Rule", "adam_unroll", "adam_unroll_", "backend", "backends", "clipped", "decayed"]

_NATIVE, _ = native_status("adam_unroll")
DEFAULT = Rule()


def adam_unroll(
    p: Tensor, g: Tensor, m: Tensor, v: Tensor, t: Tensor, lr: Tensor, rule: Rule = DEFAULT
) -> tuple[Tensor, Tensor, Tensor]:
    """(p', m', v'), differentiable in p, g, m and v, to any order; lr and t get no gradient.

    t is the number of this step, from 1, in p's dtype. t and lr have no axes, or the leading (replica) axes of p.
    """
    _check(p, g, m, v, t, lr)
    if lr.requires_grad:
        raise ValueError("adam_unroll got lr that requires grad, and has no derivative for it; use reference.step")
    serving = backend(p)
    if serving is _Native and not torch.is_grad_enabled():
        return serving.step(p, g, m, v, t, lr, rule)  # its own vmap rule; apply() costs more than a small step
    return _step(serving, p, g, m, v, t, lr, rule)


@torch.no_grad()
def adam_unroll_(
    p: Sequence[Tensor],
    g: Sequence[Tensor],
    m: Sequence[Tensor],
    v: Sequence[Tensor],
    step_count: Tensor,
    lr: Tensor,
    rule: Rule = DEFAULT,
    weight_decay: float = 0.0,
    clip_norm: float | None = None,
) -> tuple[Tensor, Tensor]:
    """The step after `step_count` others, of all parameters at once, in the place of p, m and v, without a derivative.
    (step_count + 1, the norm of all g), each for every replica. No new memory where g has p's order in memory.

    Their gradient is g, scaled down to a norm of at most `clip_norm`, plus weight_decay p."""
    if not len(p) == len(g) == len(m) == len(v) > 0:
        got = f"{len(p)}, {len(g)}, {len(m)} and {len(v)}"
        raise ValueError(f"adam_unroll_ got {got} of p, g, m and v; expected as many of each, at least one")
    for one in zip(p, g, m, v, strict=True):
        _check(*one, step_count, lr)
    return _steps_(backend(p[0]), list(p), list(g), list(m), list(v), step_count, lr, rule, weight_decay, clip_norm)


def _steps_(
    backend: Any,
    p: list[Tensor],
    g: list[Tensor],
    m: list[Tensor],
    v: list[Tensor],
    step_count: Tensor,
    lr: Tensor,
    rule: Rule,
    weight_decay: float,
    clip_norm: float | None,
) -> tuple[Tensor, Tensor]:
    if backend is _Native:
        return torch.ops.eblvm.adam_unroll_(p, g, m, v, step_count, lr, *rule, weight_decay, clip_norm)
    t, (g, norm) = step_count + 1, clipped(g, lr.dim(), clip_norm)
    for one in zip(p, decayed(p, g, weight_decay), m, v, strict=True):
        backend.step_(*one, t, lr, rule)
    return t, norm


def backend(p: Tensor) -> Any:
    """What serves p: a function for every order, with the signatures of the reference."""
    return backend_for("adam_unroll", p, reference, _Native if _NATIVE else None)


def backends() -> list[Backend]:
    """Which backend serves on which device, and why not the others."""
    return op_backends("adam_unroll")


def _check(p: Tensor, g: Tensor, m: Tensor, v: Tensor, t: Tensor, lr: Tensor) -> None:
    shape, lead, dtype, device = p.shape, t.shape, p.dtype, p.device
    if not dtype.is_floating_point:
        raise ValueError(f"adam_unroll got p of dtype {dtype}; expected a floating dtype")
    if lead != shape[: len(lead)]:
        raise ValueError(f"adam_unroll got t of shape {tuple(lead)}; expected [] or leading axes of p {tuple(shape)}")
    for name, x, expected in (("g", g, shape), ("m", m, shape), ("v", v, shape), ("t", t, lead), ("lr", lr, lead)):
        if x.shape != expected:
            raise ValueError(f"adam_unroll got {name} of shape {tuple(x.shape)}; expected {tuple(expected)}")
        if x.dtype != dtype:
            raise ValueError(f"adam_unroll got {name} of dtype {x.dtype}; expected that of p, {dtype}")
        if x.device != device:
            raise ValueError(f"adam_unroll got {name} of device {x.device}; expected that of p, {device}")


class _Native:
    """The native ops with the signatures of the reference; steps in place have one op for many parameters."""

    @staticmethod
    def step(*arguments: Any) -> tuple[Tensor, Tensor, Tensor]:
        *tensors, rule = arguments
        return torch.ops.eblvm.adam_unroll(*tensors, *rule)

    @staticmethod
    def reverse(*arguments: Any) -> tuple[Tensor, ...]:
        *tensors, rule = arguments
        return torch.ops.eblvm.adam_unroll_reverse(*tensors, *rule)


def _pull_step(backend: Any, arguments: Any, kept: Any, cotangents: Any, wanted: Any) -> tuple[Any, ...]:
    *_, wants_lr, _rule = wanted
    if wants_lr:
        raise RuntimeError("adam_unroll has no derivative for lr; use reference.step")
    return cotangents[0], *_reverse(backend, *cotangents, *arguments[1:]), None, None, None


_step = order("step", _pull_step, forgets=(0,))
_reverse = order("reverse", by_reference(reference.reverse))
