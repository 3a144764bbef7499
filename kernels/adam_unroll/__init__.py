"""The differentiable Adam step: the move of phi in an unrolled lower step, with its reverse in one pass.

    m' = b1 m + (1-b1) g;  v' = b2 v + (1-b2) g^2;  p' = p - lr/c1 m' / (sqrt(v'/c2 + eps_root) + eps);  ci = 1 - bi^t

README.md derives the reverse. It saves (g, m, v), three times the parameters per step, and no intermediate.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from eblvm.kernels.adam_unroll import reference
from eblvm.kernels.adam_unroll.reference import Rule, clipped, decayed
from eblvm.kernels.runtime.dispatch import Backend, backend_for, native_status, op_backends, triton_module
from eblvm.kernels.runtime.orders import by_reference, order

__all__ = [
    "Rule",
    "adam_steps",
    "adam_unroll",
    "adam_unroll_",
    "all_finite",
    "backend",
    "backends",
    "clipped",
    "decayed",
    "lists_backend",
    "restore_",
    "serves_lists",
]

_NATIVE, _ = native_status("adam_unroll")
DEFAULT = Rule()


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
    *,
    average: Sequence[Tensor] = (),
    decay: float = 0.0,
    go: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    if has_lists(backend):
        return _lists_on(p[0]).steps_(p, g, m, v, step_count, lr, rule, weight_decay, clip_norm, average, decay, go)
    if go is not None:
        raise ValueError("adam_unroll_ got go for tensors without a Triton step of lists; branch on its value")
    if backend is _Native:
        t, norm = torch.ops.eblvm.adam_unroll_(p, g, m, v, step_count, lr, *rule, weight_decay, clip_norm)
    else:
        t, (g, norm) = step_count + 1, clipped(g, lr.dim(), clip_norm)
        for one in zip(p, decayed(p, g, weight_decay), m, v, strict=True):
            backend.step_(*one, t, lr, rule)
    for e, x in zip(average, p, strict=bool(average)):
        e.copy_(torch.lerp(x, e, decay))
    return t, norm


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


class _Lists:
    """The Triton steps of lists; imported on first use."""

    @staticmethod
    def steps(*arguments: Any) -> Any:
        return _lists_on(arguments[0][0]).steps(*arguments)

    @staticmethod
    def reverses(*arguments: Any) -> Any:
        return _lists_on(arguments[0][0]).reverses(*arguments)


class _OneByOne(NamedTuple):
    """The same by a backend's step of one tensor."""

    backend: Any

    def steps(self, p: Any, g: Any, m: Any, v: Any, step_count: Tensor, lr: Tensor, rule: Rule) -> Any:
        t = step_count + 1
        moved = [self.backend.step(*one, t, lr, rule) for one in zip(p, g, m, v, strict=True)]
        return *zip(*moved, strict=True), t

    def reverses(
        self, p_bar: Any, m_bar: Any, v_bar: Any, g: Any, m: Any, v: Any, step_count: Tensor, lr: Tensor, rule: Rule
    ) -> Any:
        zeros = [torch.zeros_like(x) for x in g] if m_bar is None else []
        every = zip(p_bar, m_bar or zeros, v_bar or zeros, g, m, v, strict=True)
        return tuple(zip(*(self.backend.reverse(*one, step_count + 1, lr, rule) for one in every), strict=True))


class _Steps(torch.autograd.Function):
    """A step of Adam on a list; it saves all g, m and v, which the reverse reads."""

    @staticmethod
    def forward(ctx: Any, lists: Any, rule: Rule, step_count: Tensor, lr: Tensor, *tensors: Tensor) -> Any:
        p, g, m, v = _quarters(tensors)
        ctx.lists, ctx.rule = lists, rule
        ctx.save_for_backward(step_count, lr, *g, *m, *v)
        ctx.set_materialize_grads(False)
        p_, m_, v_, after = lists.steps(p, g, m, v, step_count, lr, rule)
        ctx.mark_non_differentiable(after)
        return *p_, *m_, *v_, after

    @staticmethod
    def backward(ctx: Any, *bars: Any) -> tuple[Any, ...]:
        step_count, lr, *kept = ctx.saved_tensors
        count = len(kept) // 3
        g, m, v = kept[:count], kept[count : 2 * count], kept[2 * count :]
        p_bar = [torch.zeros_like(x) if b is None else b for b, x in zip(bars[:count], g, strict=True)]
        moments = [
            torch.zeros_like(x) if b is None else b for b, x in zip(bars[count : 3 * count], (*m, *v), strict=True)
        ] if any(b is not None for b in bars[count : 3 * count]) else []  # fmt: skip
        m_bar, v_bar = (moments[:count], moments[count:]) if moments else (None, None)
        if torch.is_grad_enabled():  # torch knows the derivatives of the reference
            zeros = [torch.zeros_like(x) for x in g]
            reverse: Any = reference.reverse
            every = zip(p_bar, m_bar or zeros, v_bar or zeros, g, m, v, strict=True)
            pulled = [reverse(*one, step_count + 1, lr, ctx.rule) for one in every]
            g_bar, m_bar_, v_bar_ = (list(part) for part in zip(*pulled, strict=True))
        else:
            g_bar, m_bar_, v_bar_ = ctx.lists.reverses(p_bar, m_bar, v_bar, g, m, v, step_count, lr, ctx.rule)
        return None, None, None, None, *p_bar, *g_bar, *m_bar_, *v_bar_


def _quarters(tensors: Sequence[Tensor]) -> list[list[Tensor]]:
    count = len(tensors) // 4
    return [list(tensors[k * count : (k + 1) * count]) for k in range(4)]


def _pull_step(backend: Any, arguments: Any, kept: Any, cotangents: Any, wanted: Any) -> tuple[Any, ...]:
    *_, wants_lr, _rule = wanted
    if wants_lr:
        raise RuntimeError("adam_unroll has no derivative for lr; use reference.step")
    return cotangents[0], *_reverse(backend, *cotangents, *arguments[1:]), None, None, None


_step = order("step", _pull_step, forgets=(0,))
_reverse = order("reverse", by_reference(reference.reverse))


def adam_unroll(
    p: Tensor, g: Tensor, m: Tensor, v: Tensor, t: Tensor, lr: Tensor, rule: Rule = DEFAULT
) -> tuple[Tensor, Tensor, Tensor]:
    """(p', m', v'), differentiable in p, g, m and v, to any order; lr and t get no gradient.

    t is the number of this step, from 1, in p's dtype. t and lr have no axes, or the leading (replica) axes of p.
    """
    _check(p, g, m, v, t, lr)
    if lr.requires_grad:
        raise ValueError("adam_unroll got lr that requires grad, and has no derivative for it; use reference.step")
    chosen = backend(p)
    if chosen is _Native and not torch.is_grad_enabled():
        return chosen.step(p, g, m, v, t, lr, rule)  # its own vmap rule; apply() costs more than a small step
    return _step(chosen, p, g, m, v, t, lr, rule)


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
    average: Sequence[Tensor] = (),
    decay: float = 0.0,
    go: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """The step after `step_count` others, of all parameters at once, in the place of p, m and v, without a derivative.
    (step_count + 1, the norm of all g), each for every replica. No new memory where g has p's order in memory.

    Their gradient is g, scaled down to a norm of at most `clip_norm`, plus weight_decay p. `average` becomes
    decay average + (1 - decay) p'. With `go`, a bool on the device, nothing moves where it is false."""
    if not len(p) == len(g) == len(m) == len(v) > 0:
        got = f"{len(p)}, {len(g)}, {len(m)} and {len(v)}"
        raise ValueError(f"adam_unroll_ got {got} of p, g, m and v; expected as many of each, at least one")
    for one in zip(p, g, m, v, strict=True):
        _check(*one, step_count, lr)
    lists = list(p), list(g), list(m), list(v)
    return _steps_(
        backend(p[0]), *lists, step_count, lr, rule, weight_decay, clip_norm, average=list(average), decay=decay, go=go
    )


def adam_steps(
    p: Sequence[Tensor],
    g: Sequence[Tensor],
    m: Sequence[Tensor],
    v: Sequence[Tensor],
    step_count: Tensor,
    lr: Tensor,
    rule: Rule = DEFAULT,
) -> tuple[list[Tensor], list[Tensor], list[Tensor], Tensor]:
    """(p', m' and v' of every parameter, step_count + 1) by one launch, and its reverse by another.

    Differentiable in p, g, m and v, to any order. For tensors of which `serves_lists` is true."""
    results = _Steps.apply(_Lists, rule, step_count, lr, *p, *g, *m, *v)
    count = len(p)
    return list(results[:count]), list(results[count : 2 * count]), list(results[2 * count : -1]), results[-1]


def all_finite(tensors: Sequence[Tensor]) -> Tensor:
    """Are all elements of all tensors finite? A bool on their device, by one launch with Triton."""
    if not serves_lists(tensors[0]):
        return torch.stack([x.isfinite().all() for x in tensors]).all()
    return _lists_on(tensors[0]).all_finite(tensors)


def restore_(tensors: Sequence[Tensor], before: Sequence[Tensor], go: Tensor) -> None:
    """`tensors` become those of `before` where `go`, a bool on the device, is false; by Triton."""
    _lists_on(go).restore_(tensors, before, go)


def serves_lists(p: Tensor) -> bool:
    """Is there a step of all tensors at once for p, outside of torch.func's transforms?"""
    return has_lists(backend(p)) and not torch._C._are_functorch_transforms_active()


def lists_backend(p: Tensor) -> Any:
    """`steps` and `reverses` of lists of parameters like p, without a graph."""
    return _Lists if has_lists(backend(p)) else _OneByOne(backend(p))


def _lists_on(x: Tensor) -> Any:
    return triton_module("adam_unroll", x.device, "triton_lists")


def has_lists(backend: Any) -> bool:
    return getattr(backend, "__name__", "") == f"{__name__}.triton"


def backend(p: Tensor) -> Any:
    """The backend for p: a function for every order, with the signatures of the reference."""
    return backend_for("adam_unroll", p, reference, _Native if _NATIVE else None)


def backends() -> list[Backend]:
    """The backends of this op: which is used on which device, and why not the others."""
    return op_backends("adam_unroll")
