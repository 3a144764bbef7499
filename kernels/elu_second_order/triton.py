"""ELU in Triton: forward, backward and double backward, each one pass, in the memory order of the input.

Arithmetic is float32 for float32, bfloat16 and float16, and float64 for float64.
"""

# The kernels are in a language of their own, which has no types.
# mypy: disable-error-code="no-untyped-def,untyped-decorator"

import torch
import triton
import triton.language as tl
from torch import Tensor

from eblvm.kernels.runtime.triton_report import Variant

BLOCK, WIDE_BLOCK = 1024, 512  # fewer elements per thread in float64, where it would spill
VALUE, FIRST, SECOND = tl.constexpr(0), tl.constexpr(1), tl.constexpr(2)


@triton.jit
def expm1_negative(x, TERMS: tl.constexpr):
    """exp(x) - 1 for x <= 0: near 0 by its series x (1 + x/2 (1 + x/3 (...))), which keeps the relative precision."""
    series = tl.zeros_like(x) + 1.0
    for k in tl.static_range(TERMS - 1):
        series = 1.0 + series * x / (TERMS - k)
    return tl.where(x > -0.35, series * x, tl.exp(x) - 1.0)


@triton.jit
def elu_kernel(
    u_ptr, g_ptr, x_ptr, out_ptr, out_x_ptr, size,
    ALPHA: tl.constexpr, ORDER: tl.constexpr, WIDE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    real = tl.float64 if WIDE else tl.float32
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    keep = i < size
    x = tl.load(x_ptr + i, mask=keep, other=0.0).to(real)
    low = tl.minimum(x, 0.0)
    if ORDER == VALUE:
        tl.store(out_ptr + i, tl.where(x > 0, x, ALPHA * expm1_negative(low, 15 if WIDE else 8)), mask=keep)
    else:
        curve = ALPHA * tl.exp(low)
        slope = tl.where(x > 0, 1.0, curve)
        g = tl.load(g_ptr + i, mask=keep, other=0.0).to(real)
        if ORDER == FIRST:
            tl.store(out_ptr + i, g * slope, mask=keep)
        else:
            u = tl.load(u_ptr + i, mask=keep, other=0.0).to(real)
            tl.store(out_ptr + i, u * slope, mask=keep)
            tl.store(out_x_ptr + i, u * g * tl.where(x > 0, 0.0, curve), mask=keep)


def value(x: Tensor, alpha: float) -> Tensor:
    return _launch(VALUE, x, alpha)[0]


def first(g: Tensor, x: Tensor, alpha: float) -> Tensor:
    return _launch(FIRST, x, alpha, g)[0]


def second(u: Tensor, g: Tensor, x: Tensor, alpha: float) -> tuple[Tensor, Tensor]:
    return _launch(SECOND, x, alpha, g, u)


def _launch(
    order: tl.constexpr, x: Tensor, alpha: float, g: Tensor | None = None, u: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    if torch.empty_like(x).stride() != x.stride():  # not dense in any order of its axes
        x = x.contiguous()
    g, u = (x if t is None else t if t.stride() == x.stride() else torch.empty_like(x).copy_(t) for t in (g, u))
    out = torch.empty_like(x)
    out_x = torch.empty_like(x) if order.value == SECOND.value else out
    if x.numel():
        wide = x.dtype == torch.float64
        block = WIDE_BLOCK if wide else BLOCK
        elu_kernel[(triton.cdiv(x.numel(), block),)](
            u, g, x, out, out_x, x.numel(), ALPHA=alpha, ORDER=order.value, WIDE=wide, BLOCK=block
        )
    return out, out_x


def variants() -> list[Variant]:
    variants = []
    for element in ("fp32", "bf16", "fp64"):
        for name, order in (("value", VALUE), ("first", FIRST), ("second", SECOND)):
            pointers = ("u_ptr", "g_ptr", "x_ptr", "out_ptr", "out_x_ptr")
            arguments = dict.fromkeys(pointers, f"*{element}") | {"size": 128 * 32 * 32}
            wide = element == "fp64"
            constants = {"ALPHA": 1.0, "ORDER": order.value, "WIDE": wide, "BLOCK": WIDE_BLOCK if wide else BLOCK}
            variants.append(Variant(f"elu_second_order {name} {element}", elu_kernel, arguments, constants))
    return variants
