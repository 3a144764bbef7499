"""The differentiable Adam step: what an unrolled lower step does to phi, with its reverse in one pass.

    m' = b1 m + (1-b1) g;  v' = b2 v + (1-b2) g^2;  p' = p - lr/c1 m' / (sqrt(v'/c2 + eps_root) + eps);  ci = 1 - bi^t

README.md derives the reverse. It saves (g, m, v), three times the parameters a step, and no intermediate.
"""

from typing import Any

import torch
from torch import Tensor

from eblvm.kernels.adam_unroll import reference
from eblvm.kernels.adam_unroll.reference import Rule
from eblvm.kernels.dispatch import Backend, backend_for, native_status, op_backends
from eblvm.kernels.orders import by_reference, order

__all__ = ["Rule", "adam_unroll", "adam_unroll_", "backend", "backends"]

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
    p: Tensor, g: Tensor, m: Tensor, v: Tensor, t: Tensor, lr: Tensor, rule: Rule = DEFAULT
) -> tuple[Tensor, Tensor, Tensor]:
    """The same step in the place of p, m and v, which it returns: no new memory, no derivative."""
    _check(p, g, m, v, t, lr)
    backend(p).step_(p, g, m, v, t, lr, rule)
    return p, m, v


def backend(p: Tensor) -> Any:
    """What serves p: a function for every order, with the signatures of the reference."""
    return backend_for("adam_unroll", p, reference, _Native if _NATIVE else None)


def backends() -> list[Backend]:
    """Which backend serves on which device, and why not the others."""
    return op_backends("adam_unroll")


def _check(p: Tensor, g: Tensor, m: Tensor, v: Tensor, t: Tensor, lr: Tensor) -> None:
    for name, x in (("g", g), ("m", m), ("v", v)):
        _same(name, x, p, tuple(p.shape))
    if not p.is_floating_point():
        raise ValueError(f"adam_unroll got p of dtype {p.dtype}; expected a floating dtype")
    lead = tuple(t.shape)
    if lead != tuple(p.shape[: t.dim()]):
        raise ValueError(f"adam_unroll got t of shape {lead}; expected [] or leading axes of p {tuple(p.shape)}")
    _same("t", t, p, lead)
    _same("lr", lr, p, lead)


def _same(name: str, x: Tensor, p: Tensor, shape: tuple[int, ...]) -> None:
    if tuple(x.shape) != shape:
        raise ValueError(f"adam_unroll got {name} of shape {tuple(x.shape)}; expected {shape}")
    for what in ("dtype", "device"):
        if getattr(x, what) != getattr(p, what):
            raise ValueError(
                f"adam_unroll got {name} of {what} {getattr(x, what)}; expected that of p, {getattr(p, what)}"
            )


class _Native:
    """The native ops with the signature of the reference."""

    @staticmethod
    def step(*arguments: Any) -> tuple[Tensor, Tensor, Tensor]:
        *tensors, rule = arguments
        return torch.ops.eblvm.adam_unroll(*tensors, *rule)

    @staticmethod
    def step_(*arguments: Any) -> None:
        *tensors, rule = arguments
        torch.ops.eblvm.adam_unroll_(*tensors, *rule)

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
