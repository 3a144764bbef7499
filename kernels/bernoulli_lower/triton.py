"""The pointwise part of the lower step in Triton: value, first and second derivative, each one pass.

Arithmetic is float32 (float64 for float64 inputs) whatever the inputs' type. A program reads BLOCK * 4 columns of some
rows at once, since noise comes in blocks of four words.
"""

# The kernels are in a language of their own, which has no types.
# mypy: disable-error-code="no-untyped-def,untyped-decorator"

import torch
import triton
import triton.language as tl
from torch import Tensor

from eblvm.kernels.philox.triton import draw_words, logistic
from eblvm.kernels.runtime.triton_report import Variant

GIVEN, DRAWN, EXACT = tl.constexpr(0), tl.constexpr(1), tl.constexpr(2)
VALUE, FIRST, SECOND = tl.constexpr(0), tl.constexpr(1), tl.constexpr(2)
BLOCK, WIDE_BLOCK = 64, 32  # blocks of four columns; fewer in float64, where a thread with two elements spills


@triton.jit
def sigmoid(z):
    """1 / (1 + exp(-z)) from exp(-|z|), which does not overflow."""
    e = tl.exp(-tl.abs(z))
    return tl.where(z >= 0, 1.0 / (1.0 + e), e / (1.0 + e))


@triton.jit
def softplus(z):
    """max(z, 0) + log(1+y) with y = exp(-|z|); by Kahan the rounding of 1+y cancels in the ratio."""
    y = tl.exp(-tl.abs(z))
    u = 1.0 + y
    ratio = tl.log(u) * y / tl.where(u == 1.0, 1.0, u - 1.0)
    return tl.maximum(z, 0.0) + tl.where(u == 1.0, y, ratio)


@triton.jit
def coefficients(l, x, noise, TAU: tl.constexpr, MEAN: tl.constexpr):  # noqa: E741
    """sigmoid(l), h, dh/dl, delta = dkl/dl and d delta/dl, from l and x."""
    s = sigmoid(l)
    gap = l - x
    if MEAN:
        h = s
        slope = s * (1.0 - s)
        delta = gap * slope
        curvature = slope + gap * slope * (1.0 - 2.0 * s)
    else:
        h = sigmoid((l + noise) / TAU)
        slope = h * (1.0 - h) / TAU
        delta = h + gap * slope - s
        curvature = 2.0 * slope + gap * slope * (1.0 - 2.0 * h) / TAU - s * (1.0 - s)
    return s, h, slope, delta, curvature


@triton.jit(do_not_specialize=["step", "purpose", "first"])
def lower_kernel(
    logits_ptr,
    x_ptr,
    noise_ptr,
    seed_ptr,
    g_ptr,
    u_ptr,
    w_ptr,
    out_row_ptr,
    out_l_ptr,
    out_x_ptr,
    step,
    purpose,
    first,
    batch,
    width,
    TAU: tl.constexpr,  # not an argument: a float argument would be float32
    NOISE: tl.constexpr,
    ORDER: tl.constexpr,
    WIDE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """One row [H] a program, in blocks of 4 * BLOCK columns; per-row results are summed over the blocks."""
    row = tl.program_id(0).to(tl.int64)
    real = tl.float64 if WIDE else tl.float32
    total = tl.zeros([4 * BLOCK], dtype=real)
    g = 0.0
    if ORDER != VALUE:
        g = tl.load(g_ptr + row).to(real)
    for begin in range(0, width, 4 * BLOCK):
        column = begin + tl.arange(0, 4 * BLOCK)
        keep = column < width
        at = row * width + column
        l = tl.load(logits_ptr + at, mask=keep, other=0.0).to(real)  # noqa: E741
        x = tl.load(x_ptr + at, mask=keep, other=0.0).to(real)
        noise = l
        if NOISE == DRAWN:
            block = begin // 4 + tl.arange(0, BLOCK)
            sample = tl.zeros_like(block) + first + row % batch
            noise = logistic(draw_words(tl.load(seed_ptr + row // batch), sample, block, step, purpose)).to(real)
        elif NOISE == GIVEN:
            noise = tl.load(noise_ptr + at, mask=keep, other=0.0).to(real)
        _, h, slope, delta, curvature = coefficients(l, x, noise, TAU, NOISE == EXACT)
        if ORDER == VALUE:
            total += tl.where(keep, h * (l - x) - softplus(l), 0.0)
        elif ORDER == FIRST:
            tl.store(out_l_ptr + at, g * delta, mask=keep)
            tl.store(out_x_ptr + at, -g * h, mask=keep)
        else:
            u = tl.load(u_ptr + at, mask=keep, other=0.0).to(real)
            w = tl.load(w_ptr + at, mask=keep, other=0.0).to(real)
            total += tl.where(keep, u * delta - w * h, 0.0)
            tl.store(out_l_ptr + at, g * (u * curvature - w * slope), mask=keep)
            tl.store(out_x_ptr + at, -g * u * slope, mask=keep)
    if ORDER != FIRST:
        tl.store(out_row_ptr + row, tl.sum(total, 0))


def value(
    logits: Tensor,
    x: Tensor,
    noise: Tensor | None,
    seed: Tensor | None,
    step: int,
    purpose: int,
    first: int,
    tau: float,
) -> Tensor:
    out = torch.empty(logits.shape[:-1], dtype=logits.dtype, device=logits.device)
    _launch(VALUE, None, None, None, logits, x, noise, seed, (step, purpose, first), tau, out, None, None)
    return out


def first(
    g: Tensor,
    logits: Tensor,
    x: Tensor,
    noise: Tensor | None,
    seed: Tensor | None,
    step: int,
    purpose: int,
    first: int,
    tau: float,
) -> tuple[Tensor, Tensor]:
    out_l, out_x = _like(logits), _like(logits)
    _launch(FIRST, g, None, None, logits, x, noise, seed, (step, purpose, first), tau, None, out_l, out_x)
    return out_l, out_x


def second(
    g: Tensor,
    u: Tensor,
    w: Tensor,
    logits: Tensor,
    x: Tensor,
    noise: Tensor | None,
    seed: Tensor | None,
    step: int,
    purpose: int,
    first: int,
    tau: float,
) -> tuple[Tensor, Tensor, Tensor]:
    out = torch.empty(logits.shape[:-1], dtype=logits.dtype, device=logits.device)
    out_l, out_x = _like(logits), _like(logits)
    _launch(SECOND, g, u, w, logits, x, noise, seed, (step, purpose, first), tau, out, out_l, out_x)
    return out, out_l, out_x


def _like(t: Tensor) -> Tensor:
    return torch.empty(t.shape, dtype=t.dtype, device=t.device)


def _launch(
    order: tl.constexpr,
    g: Tensor | None,
    u: Tensor | None,
    w: Tensor | None,
    logits: Tensor,
    x: Tensor,
    noise: Tensor | None,
    seed: Tensor | None,
    stream: tuple[int, int, int],
    tau: float,
    *outputs: Tensor | None,
) -> None:
    batch, width = logits.shape[-2:]
    if logits.numel() == 0:
        for out in outputs:
            if out is not None:
                out.zero_()
        return
    kind = EXACT if noise is None and seed is None else DRAWN if noise is None else GIVEN
    inputs = [t if t is None else t.contiguous() for t in (logits, x, noise, seed, g, u, w)]
    absent = logits.new_empty(0)  # in the place of what this order or noise does not read
    arguments = [absent if t is None else t for t in (*inputs, *outputs)]
    lower_kernel[(logits.numel() // width,)](
        *arguments,
        *stream,
        batch,
        width,
        TAU=tau,
        NOISE=kind.value,
        ORDER=order.value,
        WIDE=logits.dtype == torch.float64,
        BLOCK=WIDE_BLOCK if logits.dtype == torch.float64 else BLOCK,
        enable_fp_fusion=kind.value != DRAWN.value,
    )


def variants() -> list[Variant]:
    """Every order and noise in float32; the other types with given noise, since only the loads differ."""
    variants = []
    for element in ("fp32", "bf16", "fp64"):
        for noise, n in (("given", GIVEN), ("drawn", DRAWN), ("exact", EXACT)):
            if element != "fp32" and noise != "given":
                continue
            for order, o in (("value", VALUE), ("first", FIRST), ("second", SECOND)):
                names = ("logits", "x", "noise", "seed", "g", "u", "w", "out_row", "out_l", "out_x")
                arguments: dict[str, object] = {f"{name}_ptr": f"*{element}" for name in names}
                arguments |= {"seed_ptr": "*i64", "step": 3, "purpose": 5 << 16, "first": 0, "batch": 100, "width": 400}
                wide = element == "fp64"
                constants = {"TAU": 0.1, "NOISE": n.value, "ORDER": o.value, "WIDE": wide}
                constants["BLOCK"] = WIDE_BLOCK if wide else BLOCK
                name = f"bernoulli_lower {order} {noise} {element}"
                variants.append(Variant(name, lower_kernel, arguments, constants, fp_fusion=noise != "drawn"))
    return variants
