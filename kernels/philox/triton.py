"""The noise in Triton: the bits of reference.py on a GPU, and the functions by which other kernels draw noise.

Launch every kernel that uses these with `enable_fp_fusion=False`: a fused multiply-add rounds once where the reference
rounds twice. Division and square root are the correctly rounded ones.
"""

# The kernels are in a language of their own, which has no types.
# mypy: disable-error-code="no-untyped-def,untyped-decorator"

from collections.abc import Sequence
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from eblvm.kernels.philox import reference
from eblvm.kernels.runtime.selection import number, pointer
from eblvm.kernels.runtime.triton_report import Variant

BLOCK = 128  # blocks of four words in a program

LOG = tl.constexpr(reference.LOG)
CENTRE = tl.constexpr(reference.ERFINV_CENTRE)
TAIL = tl.constexpr(reference.ERFINV_TAIL)
LOG2_HIGH, LOG2_LOW = tl.constexpr(reference.LOG2_HIGH), tl.constexpr(reference.LOG2_LOW)
SQRT2 = tl.constexpr(reference.SQRT2)
WORDS, UNIFORM, NORMAL, LOGISTIC, GUMBEL, RADEMACHER = (tl.constexpr(int(kind)) for kind in reference.Kind)


@triton.jit
def draw_words(seed, sample, block, step, purpose):
    """The four words of each block, interleaved: uint32 [4 * block]."""
    seed = seed.to(tl.uint64)
    c0, c1 = block.to(tl.uint32), sample.to(tl.uint32)
    c2, c3 = tl.zeros_like(c0) + step.to(tl.uint32), tl.zeros_like(c0) + purpose.to(tl.uint32)
    k0, k1 = tl.zeros_like(c0) + (seed & 0xFFFFFFFF).to(tl.uint32), tl.zeros_like(c0) + (seed >> 32).to(tl.uint32)
    c0, c1, c2, c3 = tl.philox_impl(c0, c1, c2, c3, k0, k1, 10)
    return tl.interleave(tl.interleave(c0, c2), tl.interleave(c1, c3))


@triton.jit
def polynomial(t, c0, c1, c2, c3, c4, c5, c6, c7, high):
    """sum_i c_i t^i in Estrin's order; `high` is c8, or c8 + c9 t."""
    t2 = t * t
    t4 = t2 * t2
    low = (t * c1 + c0) + (t * c3 + c2) * t2
    middle = (t * c5 + c4) + (t * c7 + c6) * t2
    return low + (middle + t4 * high) * t4


@triton.jit
def log(x):
    bits = x.to(tl.int32, bitcast=True) - 0x3F3504F3
    e = (bits >> 23).to(tl.float32)
    f = ((bits & 0x7FFFFF) + 0x3F3504F3).to(tl.float32, bitcast=True) - 1.0
    square = f * f
    y = polynomial(f, LOG[0], LOG[1], LOG[2], LOG[3], LOG[4], LOG[5], LOG[6], LOG[7], LOG[8]) * f * square
    y = y + e * LOG2_LOW
    y = y - square * 0.5
    return f + y + e * LOG2_HIGH


@triton.jit
def tail_probability(r):
    return ((r & 0x7FFFFFFF).to(tl.int32).to(tl.float32) + 0.5) * 4.656612873077393e-10


@triton.jit
def signed(x, r):
    return tl.where((r >> 31) == 1, -x, x)


@triton.jit
def logistic(r):
    p = tail_probability(r)
    return signed(log(tl.div_rn(2.0 - p, p)), r)


@triton.jit
def normal(r):
    p = tail_probability(r)
    w = -log(p * (2.0 - p))
    t = w - 2.5
    centre = polynomial(
        t, CENTRE[0], CENTRE[1], CENTRE[2], CENTRE[3], CENTRE[4], CENTRE[5], CENTRE[6], CENTRE[7], CENTRE[8]
    )
    t = tl.sqrt_rn(w) - 3.0
    high = t * TAIL[9] + TAIL[8]
    tail = polynomial(t, TAIL[0], TAIL[1], TAIL[2], TAIL[3], TAIL[4], TAIL[5], TAIL[6], TAIL[7], high)
    return signed((1.0 - p) * tl.where(w < 5.0, centre, tail) * SQRT2, r)


@triton.jit
def gumbel(r):
    negative = (r >> 31) == 1
    q = tail_probability(r) * 0.5
    y = 1.0 - q
    log_u = log(tl.where(negative, q, y))
    ratio = tl.div_rn(log_u * q, tl.where(y == 1.0, -1.0, y - 1.0))
    small = tl.where(y == 1.0, q, ratio)
    return -log(tl.where(negative, -log_u, small))


@triton.jit
def transform(r, KIND: tl.constexpr):
    if KIND == WORDS:
        return r.to(tl.int64)
    elif KIND == UNIFORM:
        return (r >> 8).to(tl.int32).to(tl.float32) * 5.960464477539063e-08
    elif KIND == NORMAL:
        return normal(r)
    elif KIND == LOGISTIC:
        return logistic(r)
    elif KIND == GUMBEL:
        return gumbel(r)
    else:
        return signed((r & 0).to(tl.float32) + 1.0, r)


# No specialisation: a new step or batch size must not compile a new kernel.
@triton.jit(do_not_specialize=["step", "purpose", "first", "count", "width"])
def philox_kernel(seed_ptr, out_ptr, step, purpose, first, count, width, KIND: tl.constexpr, BLOCK: tl.constexpr):
    replica = tl.program_id(1).to(tl.int64)
    blocks_per_sample = tl.cdiv(width, 4)
    flat = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    sample, block = flat // blocks_per_sample, flat % blocks_per_sample
    r = draw_words(tl.load(seed_ptr + replica), first + sample, block, step, purpose)

    flat = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, 4 * BLOCK) // 4
    sample, word = flat // blocks_per_sample, 4 * (flat % blocks_per_sample) + tl.arange(0, 4 * BLOCK) % 4
    keep = (sample < count) & (word < width)
    tl.store(out_ptr + (replica * count + sample) * width + word, transform(r, KIND), mask=keep)


@triton.jit(do_not_specialize=["step", "first"])
def philox_list_kernel(
    seed_ptr, out_ptrs, step, first, FIRST: tl.constexpr, PURPOSES: tl.constexpr, COUNTS: tl.constexpr,
    WIDTHS: tl.constexpr, KINDS: tl.constexpr, PRESENT: tl.constexpr, NUMBER: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    tile, replica = tl.program_id(0), tl.program_id(1).to(tl.int64)
    out_ptr = pointer(tile, out_ptrs, FIRST, NUMBER)
    purpose, kind = number(tile, PURPOSES, FIRST, NUMBER), number(tile, KINDS, FIRST, NUMBER)
    count, width = number(tile, COUNTS, FIRST, NUMBER), number(tile, WIDTHS, FIRST, NUMBER)
    tile = (tile - number(tile, FIRST, FIRST, NUMBER)).to(tl.int64)
    blocks_per_sample = tl.cdiv(width, 4)
    flat = tile * BLOCK + tl.arange(0, BLOCK)
    sample, block = flat // blocks_per_sample, flat % blocks_per_sample
    r = draw_words(tl.load(seed_ptr + replica), first + sample, block, step, purpose)
    flat = tile * BLOCK + tl.arange(0, 4 * BLOCK) // 4
    sample, word = flat // blocks_per_sample, 4 * (flat % blocks_per_sample) + tl.arange(0, 4 * BLOCK) % 4
    to = out_ptr + (replica * count + sample) * width + word
    keep = (sample < count) & (word < width)
    for n in tl.static_range(len(PRESENT)):
        if kind == PRESENT[n]:
            tl.store(to, transform(r, PRESENT[n]), mask=keep)


def philox_list(
    seed: Tensor, step: int, first: int, draws: Sequence[tuple[int, int, int, int]], out: Sequence[Tensor]
) -> None:
    """`philox` of every (kind, purpose, count, width), a float32 each, into its `out`: one launch for all."""
    pairs = [(draw, x) for draw, x in zip(draws, out, strict=True) if x.numel()]
    if not pairs:
        return
    seeds = seed.contiguous()
    kinds, purposes, counts, widths = zip(*(draw for draw, _ in pairs), strict=True)
    tiles = [triton.cdiv(n * triton.cdiv(w, 4), BLOCK) for n, w in zip(counts, widths, strict=True)]
    philox_list_kernel[(sum(tiles), seeds.numel())](
        seeds, tuple(x for _, x in pairs), step, first,
        FIRST=tuple(sum(tiles[:k]) for k in range(len(tiles))), PURPOSES=purposes, COUNTS=counts, WIDTHS=widths,
        KINDS=kinds, PRESENT=tuple(sorted(set(kinds))), NUMBER=len(pairs), BLOCK=BLOCK, enable_fp_fusion=False,
    )  # fmt: skip


def philox(seed: Tensor, step: int, purpose: int, count: int, width: int, first: int, kind: int) -> Tensor:
    """`reference.philox` on the device of `seed`."""
    seeds = seed.contiguous()
    dtype = torch.int64 if kind == reference.Kind.WORDS else torch.float32
    out = torch.empty((*seed.shape, count, width), dtype=dtype, device=seed.device)
    if out.numel() == 0:
        return out
    grid = (triton.cdiv(count * triton.cdiv(width, 4), BLOCK), seeds.numel())
    philox_kernel[grid](
        seeds, out, step, purpose, first, count, width, KIND=int(kind), BLOCK=BLOCK, enable_fp_fusion=False
    )
    return out


def variants() -> list[Variant]:
    """The kernel of `philox`."""
    variants = []
    for kind in reference.Kind:
        arguments: dict[str, object] = {
            "seed_ptr": "*i64",
            "out_ptr": "*i64" if kind == reference.Kind.WORDS else "*fp32",
        }
        arguments |= {"step": 3, "purpose": 5 << 16, "first": 0, "count": 100, "width": 560}
        constants = {"KIND": int(kind), "BLOCK": BLOCK}
        variants.append(Variant(f"philox {kind.name.lower()}", philox_kernel, arguments, constants, fp_fusion=False))
    of_list = {"seed_ptr": "*i64", "out_ptrs": ("*fp32",) * 3, "step": 3, "first": 0}
    kinds = tuple(int(kind) for kind in (reference.Kind.NORMAL, reference.Kind.LOGISTIC, reference.Kind.LOGISTIC))
    listed: dict[str, Any] = {
        "FIRST": (0, 110, 190), "PURPOSES": (5 << 16, 6 << 16, 6 << 16 | 1), "COUNTS": (100,) * 3,
        "WIDTHS": (560, 400, 400), "KINDS": kinds, "PRESENT": kinds[:2], "NUMBER": 3, "BLOCK": BLOCK,
    }  # fmt: skip
    variants.append(Variant("philox list", philox_list_kernel, of_list, listed, fp_fusion=False))
    return variants
