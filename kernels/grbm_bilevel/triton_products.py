"""Matrix products of a block of latent units, which the lower and the upper kernels have in common.

A program walks the samples or the visible units in tiles; V = v + SIGMA eps is made where it is read. Shape tags as in
README.md.
"""

# The kernels are in a language of their own, which has no types.
# mypy: disable-error-code="no-untyped-def,untyped-decorator"

import triton
import triton.language as tl

from eblvm.kernels.grbm.triton_rows import put, tile, visible


@triton.jit
def against(
    v_ptr, eps_ptr, A_ptr, row, h, batch, D: tl.constexpr, H: tl.constexpr, SIGMA: tl.constexpr, real: tl.constexpr,
    PRECISION: tl.constexpr, BM: tl.constexpr, BH: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """v A^T of a block of samples and of latent units [BM, BH], A [H, D]."""
    z = tl.zeros([BM, BH], dtype=real)
    for begin in range(0, D, BK):
        d = begin + tl.arange(0, BK)
        v = visible(v_ptr, eps_ptr, row, d, batch, D, SIGMA, real)
        z = tl.dot(v, tl.trans(tile(A_ptr, h, d, H, D)), z, input_precision=PRECISION, out_dtype=real)
    return z


@triton.jit
def summed(
    left_ptr, v_ptr, eps_ptr, h, d, batch, D: tl.constexpr, H: tl.constexpr, SIGMA: tl.constexpr, real: tl.constexpr,
    PRECISION: tl.constexpr, BM: tl.constexpr, BH: tl.constexpr, BD: tl.constexpr,
):  # fmt: skip
    """left^T v over all samples, of a block of latent and of visible units [BH, BD]; left [B, H]."""
    total = tl.zeros([BH, BD], dtype=real)
    for begin in range(0, batch, BM):
        row = begin + tl.arange(0, BM)
        left = tl.trans(tile(left_ptr, row, h, batch, H))
        v = visible(v_ptr, eps_ptr, row, d, batch, D, SIGMA, real)
        total = tl.dot(left, v, total, input_precision=PRECISION, out_dtype=real)
    return total


@triton.jit
def across(
    M_ptr, right_ptr, row, h, batch, H: tl.constexpr, real: tl.constexpr, PRECISION: tl.constexpr,
    BM: tl.constexpr, BH: tl.constexpr,
):  # fmt: skip
    """M right of a block of samples and of latent units [BM, BH]; M [B, B]."""
    total = tl.zeros([BM, BH], dtype=real)
    for begin in range(0, batch, BM):
        other = begin + tl.arange(0, BM)
        right = tile(right_ptr, other, h, batch, H)
        total = tl.dot(tile(M_ptr, row, other, batch, batch), right, total, input_precision=PRECISION, out_dtype=real)
    return total


@triton.jit
def copied(from_ptr, to_ptr, h, D: tl.constexpr, H: tl.constexpr, BD: tl.constexpr):
    for begin in range(0, D, BD):
        d = begin + tl.arange(0, BD)
        put(to_ptr, tile(from_ptr, h, d, H, D), h, d, H, D)
