"""The differentiable Adam step: what an unrolled lower step does to phi, with its reverse in one pass.

    m' = b1 m + (1-b1) g;  v' = b2 v + (1-b2) g^2;  p' = p - lr/c1 m' / (sqrt(v'/c2 + eps_root) + eps);  ci = 1 - bi^t

README.md derives the reverse. It saves (g, m, v), three times the parameters a step, and no intermediate.
"""

from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from eblvm.kernels.adam_unroll import reference
from eblvm.kernels.adam_unroll.reference import Rule
from eblvm.kernels.dispatch import TRITON, Backend, native_status, op_backends

__all__ = ["Rule", "adam_unroll", "backend", "backends"]

_NATIVE, _ = native_status("adam_unroll")
DEFAULT = Rule()


def adam_unroll(
    p: Tensor, g: Tensor, m: Tensor, v: Tensor, t: Tensor, lr: Tensor, rule: Rule = DEFAULT
) -> tuple[Tensor, Tensor, Tensor]:
    """(p', m', v'), differentiable in p, g, m and v, to any order; lr and t get no gradient.

    t is the number of this step, from 1, in p's dtype. t and lr have no axes, or the leading (replica) axes of p.
    """
    for name, x in (("g", g), ("m", m), ("v", v)):
        _same(name, x, p, tuple(p.shape))
    if not p.is_floating_point():
        raise ValueError(f"adam_unroll got p of dtype {p.dtype}; expected a floating dtype")
    lead = tuple(t.shape)
    if lead != tuple(p.shape[: t.dim()]):
        raise ValueError(f"adam_unroll got t of shape {lead}; expected [] or leading axes of p {tuple(p.shape)}")
    _same("t", t, p, lead)
    _same("lr", lr, p, lead)
    if lr.requires_grad:
        raise ValueError("adam_unroll got lr that requires grad, and has no derivative for it; use reference.step")
    if torch.compiler.is_compiling():
        return reference.step(p, g, m, v, t, lr, rule)  # plain operators, which compile fuses and differentiates itself
    serving = backend(p)
    if serving is _Native and not torch.is_grad_enabled():
        return serving.step(p, g, m, v, t, lr, rule)  # its own vmap rule; apply() costs more than a small step
    return _Step.apply(serving, rule, p, g, m, v, t, lr)


def backends() -> list[Backend]:
    """Which backend serves on which device, and why not the others."""
    return op_backends("adam_unroll")


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
    def reverse(*arguments: Any) -> tuple[Tensor, ...]:
        *tensors, rule = arguments
        return torch.ops.eblvm.adam_unroll_reverse(*tensors, *rule)


def _triton() -> ModuleType:
    from eblvm.kernels.adam_unroll import triton

    return triton


def backend(p: Tensor) -> Any:
    """What serves p: its `step` and `reverse`, with the signatures of reference.py."""
    if _NATIVE and p.device.type == "cpu" and p.dtype in (torch.float32, torch.float64):
        return _Native
    if TRITON and p.device.type == "cuda":
        return _triton()
    return reference


class _Step(torch.autograd.Function):
    """The step; its backward is `_Reverse`, and beyond that the reference is differentiated."""

    @staticmethod
    def forward(backend: Any, rule: Rule, *tensors: Tensor) -> tuple[Tensor, ...]:
        return tuple(backend.step(*tensors, rule))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        ctx.backend, ctx.rule = inputs[:2]
        ctx.save_for_backward(*inputs[3:])

    @staticmethod
    def backward(ctx: Any, p_bar: Tensor, m_bar: Tensor, v_bar: Tensor) -> tuple[Any, ...]:
        if ctx.needs_input_grad[7]:
            raise RuntimeError("adam_unroll has no derivative for lr; use reference.step")
        g_bar, m_in, v_in = _Reverse.apply(ctx.backend, ctx.rule, p_bar, m_bar, v_bar, *ctx.saved_tensors)
        return None, None, p_bar, g_bar, m_in, v_in, None, None

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], backend: Any, rule: Rule, *tensors: Tensor) -> tuple[Any, Any]:
        return _Step.apply(backend, rule, *_batched(info, in_dims[2:], tensors)), (0, 0, 0)


class _Reverse(torch.autograd.Function):
    @staticmethod
    def forward(backend: Any, rule: Rule, *tensors: Tensor) -> tuple[Tensor, ...]:
        return tuple(backend.reverse(*tensors, rule))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        ctx.rule = inputs[1]
        ctx.save_for_backward(*inputs[2:])

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor) -> tuple[Any, ...]:
        *tensors, t, lr = ctx.saved_tensors
        reverse: Any = reference.reverse
        pull: Any = torch.func.vjp(lambda *x: tuple(reverse(*x, t, lr, ctx.rule)), *tensors)[1]
        return None, None, *pull(cotangents), None, None

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], backend: Any, rule: Rule, *tensors: Tensor) -> tuple[Any, Any]:
        return _Reverse.apply(backend, rule, *_batched(info, in_dims[2:], tensors)), (0, 0, 0)


def _batched(info: Any, in_dims: tuple[Any, ...], tensors: tuple[Tensor, ...]) -> list[Tensor]:
    """The mapped axis first in every tensor: leading axes of t and lr are replicas to every backend."""
    return [
        x.expand(info.batch_size, *x.shape) if dim is None else x.movedim(dim, 0)
        for x, dim in zip(tensors, in_dims, strict=True)
    ]
