"""ELU of a sum in Triton: forward, backward and double backward, each one pass, in the memory order of the sum.

Arithmetic is float32 for float32, bfloat16 and float16, and float64 for float64. The sum is rounded to its type before
its ELU: the derivatives read it as it is kept.
"""

# The kernels are in a language of their own, which has no types.
# mypy: disable-error-code="no-untyped-def,untyped-decorator"

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from eblvm.kernels.elu_second_order.triton import expm1_negative
from eblvm.kernels.runtime.triton_report import Variant

BLOCK, WIDE_BLOCK = 1024, 512  # fewer elements per thread in float64, where it would spill


@triton.jit
def value_kernel(
    x_ptr, residual_ptr, bias_ptr, s_to, y_to, size,
    STEP: tl.constexpr, CHANNELS: tl.constexpr, RESIDUAL: tl.constexpr, WIDE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    real = tl.float64 if WIDE else tl.float32
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    keep = i < size
    s = tl.load(x_ptr + i, mask=keep, other=0.0).to(real)
    if RESIDUAL:
        s += tl.load(residual_ptr + i, mask=keep, other=0.0).to(real)
    if CHANNELS:
        s += tl.load(bias_ptr + i // STEP % CHANNELS, mask=keep, other=0.0).to(real)
    rounded = s.to(s_to.dtype.element_ty)
    s = rounded.to(real)
    tl.store(s_to + i, rounded, mask=keep)
    tl.store(y_to + i, tl.where(s > 0, s, expm1_negative(tl.minimum(s, 0.0), 15 if WIDE else 8)), mask=keep)


@triton.jit
def first_kernel(
    y_ptr,
    s_ptr,
    again_ptr,
    x_ptr,
    out_to,
    size,
    S: tl.constexpr,
    AGAIN: tl.constexpr,
    WIDE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    real = tl.float64 if WIDE else tl.float32
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    keep = i < size
    x = tl.load(x_ptr + i, mask=keep, other=0.0).to(real)
    g = tl.load(y_ptr + i, mask=keep, other=0.0).to(real) * tl.where(x > 0, 1.0, tl.exp(tl.minimum(x, 0.0)))
    if S:
        g += tl.load(s_ptr + i, mask=keep, other=0.0).to(real)
    if AGAIN:
        g += tl.load(again_ptr + i, mask=keep, other=0.0).to(real)
    tl.store(out_to + i, g, mask=keep)


@triton.jit
def second_kernel(
    u_ptr, w_ptr, y_ptr, x_ptr, total_to, y_to, x_to, size, WIDE: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    real = tl.float64 if WIDE else tl.float32
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    keep = i < size
    x = tl.load(x_ptr + i, mask=keep, other=0.0).to(real)
    u = tl.load(u_ptr + i, mask=keep, other=0.0).to(real) + tl.load(w_ptr + i, mask=keep, other=0.0).to(real)
    g = tl.load(y_ptr + i, mask=keep, other=0.0).to(real)
    curve = tl.exp(tl.minimum(x, 0.0))
    tl.store(total_to + i, u, mask=keep)
    tl.store(y_to + i, u * tl.where(x > 0, 1.0, curve), mask=keep)
    tl.store(x_to + i, u * g * tl.where(x > 0, 0.0, curve), mask=keep)


def value(
    x: Tensor, residual: Tensor | None, bias: Tensor | None, dtype: torch.dtype | None = None
) -> tuple[Tensor, Tensor]:
    x = dense(x)
    s, y = torch.empty_like(x), torch.empty_like(x, dtype=dtype or x.dtype)
    step, channels, bias = (1, 0, x) if bias is None else (x.stride(1), len(bias), bias.contiguous())
    constants = {"STEP": step, "CHANNELS": channels, "RESIDUAL": residual is not None}
    _launch(value_kernel, x, x, _like(residual, x), bias, s, y, x.numel(), **constants)
    return s, y


def first(g_y: Tensor, g_s: Tensor | None, g_again: Tensor | None, s: Tensor) -> Tensor:
    s = dense(s)
    out, parts = torch.empty_like(s), (_like(g, s) for g in (g_y, g_s, g_again))
    _launch(first_kernel, s, *parts, s, out, s.numel(), S=g_s is not None, AGAIN=g_again is not None)
    return out


def second(u: Tensor, w: Tensor, g_y: Tensor, s: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    s = dense(s)
    total, of_y, of_s = (torch.empty_like(s, dtype=t.dtype) for t in (s, g_y, s))
    _launch(second_kernel, s, *(_like(t, s) for t in (u, w, g_y)), s, total, of_y, of_s, s.numel())
    return total, of_y, of_s


def dense(x: Tensor) -> Tensor:
    """x, or a contiguous copy of one with gaps."""
    return x if torch.empty_like(x).stride() == x.stride() else x.contiguous()


def _like(t: Tensor | None, x: Tensor) -> Tensor:
    """t in the memory order of x, which stands for one that is not read."""
    return x if t is None else t if t.stride() == x.stride() else torch.empty_like(x, dtype=t.dtype).copy_(t)


def _launch(kernel: Any, x: Tensor, *arguments: Any, **constants: int) -> None:
    if x.numel():
        wide = x.dtype == torch.float64
        block = WIDE_BLOCK if wide else BLOCK
        kernel[(triton.cdiv(x.numel(), block),)](*arguments, **constants, WIDE=wide, BLOCK=block)


def variants() -> list[Variant]:
    """At the sizes of images; another size than a multiple of 16 is no vector's."""
    variants = []
    for element in ("fp32", "bf16", "fp64"):
        wide = element == "fp64"
        how = {"WIDE": wide, "BLOCK": WIDE_BLOCK if wide else BLOCK}
        plain: dict[str, Any] = {"STEP": 1, "CHANNELS": 0, "RESIDUAL": True}
        for name, kernel, constants in (
            ("value", value_kernel, plain),
            ("value with bias", value_kernel, plain | {"STEP": 1024, "CHANNELS": 128}),
            ("value with bias last", value_kernel, plain | {"CHANNELS": 128}),
            ("first", first_kernel, {"S": True, "AGAIN": True}),
            ("second", second_kernel, {}),
        ):
            pointers = [argument for argument in kernel.arg_names if argument.endswith(("_ptr", "_to"))]
            arguments = dict.fromkeys(pointers, f"*{element}") | {"size": 128 * 32 * 32}
            variants.append(Variant(f"elu_of_sum {name} {element}", kernel, arguments, constants | how))
            if element == "bf16":  # the end of a net: y and its cotangents are of 32 bits
                mixed = arguments | {y: "*fp32" for y in ("y_ptr", "y_to") if y in pointers}
                variants.append(Variant(f"elu_of_sum {name} bf16 to fp32", kernel, mixed, constants | how))
    return variants
