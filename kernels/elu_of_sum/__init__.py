"""s = x + residual + bias and its ELU in one launch, and both derivatives in one each: a residual block's activation.

A sum that a block both keeps and activates meets many more sums in its derivatives: of the cotangents of the two uses,
of the two places where it was added, and of the value's pass with the score's. Every one is part of a launch that
happens anyway. README.md has the formulas. It pays where launches cost, on a GPU; elu_second_order does the rest.
"""

from typing import Any

import torch
from torch import Tensor

from eblvm.kernels import elu_second_order as elu
from eblvm.kernels.elu_of_sum import reference
from eblvm.kernels.runtime.dispatch import TRITON, TRITON_REASON, Backend, Function, backend_for
from eblvm.kernels.runtime.orders import by_reference, order

__all__ = ["backend", "backends", "elu_of_sum", "joins"]


def elu_of_sum(
    x: Tensor, residual: Tensor | None = None, bias: Tensor | None = None, dtype: torch.dtype | None = None
) -> tuple[Tensor, Tensor]:
    """(s, elu(s)) with s = x + residual + bias, for x [B, C, ...], residual of its shape and bias [C].

    elu(s) has x's type, or `dtype`, whose cast is part of the launch if there is a sum: the end of a 16-bit net.
    Differentiable to any order, the first two fused. Whatever else reads the sum should read s, not x."""
    if not x.is_floating_point():
        raise ValueError(f"elu_of_sum got x of dtype {x.dtype}; expected a floating dtype")
    if residual is not None and residual.shape != x.shape:
        raise ValueError(
            f"elu_of_sum got residual of shape {tuple(residual.shape)}; expected that of x, {tuple(x.shape)}"
        )
    if bias is not None and bias.shape != x.shape[1:2]:
        raise ValueError(f"elu_of_sum got bias of shape {tuple(bias.shape)}; expected {tuple(x.shape[1:2])}")
    if torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active():
        s, _ = reference.value(x, residual, bias) if residual is not None or bias is not None else (x, None)
        return s, elu.elu_second_order(s).to(dtype or x.dtype)
    s, y, _ = _Value.apply(backend(x), x, residual, bias, dtype or x.dtype)
    return s, y


class _Value(Function):
    """(s, y, s again). The derivative reads the last, so that what it sends to the sum is a cotangent of its own."""

    @staticmethod
    def forward(
        backend: Any, x: Tensor, residual: Tensor | None, bias: Tensor | None, dtype: torch.dtype
    ) -> tuple[Tensor, Tensor, Tensor]:
        if residual is None and bias is None:
            s, y = x.detach(), elu.backend(x).value(x, 1.0).to(dtype)
        else:
            s, y = backend.value(x, residual, bias, dtype)
        return s, y, s.detach()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        ctx.backend, *_ = inputs
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(output[-1])

    @staticmethod
    def backward(ctx: Any, g_s: Tensor | None, g_y: Tensor | None, g_again: Tensor | None) -> tuple[Any, ...]:
        (s,) = ctx.saved_tensors
        _, x_wanted, residual_wanted, bias_wanted, _ = ctx.needs_input_grad
        of_s = [g for g in (g_s, g_again) if g is not None]
        if g_y is None:
            g = of_s[0] if len(of_s) == 1 else torch.add(*of_s) if of_s else None
            twice = g
        elif not of_s and not residual_wanted:
            g = twice = elu._first(elu.backend(s), g_y, s, 1.0)
        else:
            g, twice = _First.apply(ctx.backend, g_y, *of_s, *[None] * (2 - len(of_s)), s)
        of_bias = g.sum((0, *range(2, g.dim()))) if bias_wanted and g is not None else None
        return None, g if x_wanted else None, twice if residual_wanted else None, of_bias, None


class _First(Function):
    """g of the sum, twice: its two uses have cotangents of their own."""

    @staticmethod
    def forward(
        backend: Any, g_y: Tensor, g_s: Tensor | None, g_again: Tensor | None, s: Tensor
    ) -> tuple[Tensor, Tensor]:
        g = backend.first(g_y, g_s, g_again, s)
        return g, g.detach()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        ctx.backend, g_y, *added, s = inputs
        ctx.added = [g is not None for g in added]
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(g_y, s)

    @staticmethod
    def backward(ctx: Any, u: Tensor | None, w: Tensor | None) -> tuple[Any, ...]:
        g_y, s = ctx.saved_tensors
        if u is None and w is None:
            return (None,) * 5
        if u is None or w is None:
            total = w if u is None else u
            of_y, of_s = elu._second(elu.backend(s), total, g_y, s, 1.0)
        else:
            total, of_y, of_s = _second(ctx.backend, u, w, g_y, s)
        return None, of_y, *(total if added else None for added in ctx.added), of_s

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], backend: Any, *given: Tensor | None) -> tuple[Any, Any]:
        first = [
            t if t is None else t.expand(info.batch_size, *t.shape) if dim is None else t.movedim(dim, 0)
            for t, dim in zip(given, in_dims[1:], strict=True)
        ]
        return _First.apply(backend, *first), (0, 0)


_second = order("second", by_reference(reference.second))


def joins(x: Tensor) -> bool:
    """Does it pay to leave the sums of a network on x to this op: by Triton, outside of torch.func's transforms?"""
    plain = not torch.compiler.is_compiling() and not torch._C._are_functorch_transforms_active()
    return TRITON and x.is_cuda and plain


def backend(x: Tensor) -> Any:
    """The backend for x: a function for every order, with the signatures of the reference."""
    return backend_for("elu_of_sum", x, reference, None)


def backends() -> list[Backend]:
    """The backends of this op: which is used on which device, and why not the others."""
    return [
        Backend("elu_of_sum", "cpu", "reference", True, "a sum and elu_second_order cost the same there"),
        Backend("elu_of_sum", "cuda", "triton", TRITON, TRITON_REASON),
        Backend(
            "elu_of_sum",
            "cuda",
            "reference",
            not TRITON,
            "triton is used" if TRITON else "always available",
        ),
    ]
