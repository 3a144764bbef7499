"""One pass over W for a block of samples: the results per sample of a GRBM, with both products inside.

A program keeps the [BM, D] result of its samples in registers while blocks of W stream past: x = c + v W of a block of
latent units, then the block's part of a W^T. Nothing of size B x H is written. Shape tags: v_BD, W_DH, u_MBD.
"""

# The kernels are in a language of their own, which has no types and no unpacking.
# mypy: disable-error-code="no-untyped-def,untyped-decorator,assignment"
# ruff: noqa: RUF005

import triton
import triton.language as tl

from eblvm.kernels.bernoulli_lower.triton import sigmoid, softplus

# Results of a row kernel. FREE: F(v) and its score; GIVEN: E(v, h) and its score; RESIDUAL: the denoising residual and
# loss; SLICED: 1/2 |score|^2, the score and u^T H u; PULL: the cotangent of v from those of F and of its score.
FREE, GIVEN, RESIDUAL, SLICED, PULL = (tl.constexpr(i) for i in range(5))


@triton.jit
def tile(ptr, i, j, rows, width):
    """Rows i and columns j of a row-major matrix, zero outside."""
    keep = (i < rows)[:, None] & (j < width)[None, :]
    return tl.load(ptr + i[:, None] * width + j[None, :], mask=keep, other=0.0)


@triton.jit
def put(ptr, value, i, j, rows, width):
    """Writes rows i and columns j of a row-major matrix, none outside."""
    tl.store(ptr + i[:, None] * width + j[None, :], value, mask=(i < rows)[:, None] & (j < width)[None, :])


@triton.jit
def vector(ptr, i, size, real: tl.constexpr):
    return tl.load(ptr + i, mask=i < size, other=0.0).to(real)


@triton.jit
def visible(v_ptr, eps_ptr, row, d, batch, D: tl.constexpr, SIGMA: tl.constexpr, real: tl.constexpr):
    """A tile of v, or of v + SIGMA eps."""
    v = tile(v_ptr, row, d, batch, D)
    if SIGMA != 0:
        eps = tile(eps_ptr, row, d, batch, D)
        v = (v.to(real) + SIGMA * eps.to(real)).to(v.dtype)
    return v


@triton.jit
def latent(
    v_ptr, eps_ptr, W_ptr, row, h, batch, D: tl.constexpr, H: tl.constexpr, SIGMA: tl.constexpr, real: tl.constexpr,
    PRECISION: tl.constexpr, BM: tl.constexpr, BH: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """v W of a block of samples and of latent units [BM, BH]."""
    x = tl.zeros([BM, BH], dtype=real)
    for begin in range(0, D, BK):
        d = begin + tl.arange(0, BK)
        v = visible(v_ptr, eps_ptr, row, d, batch, D, SIGMA, real)
        x = tl.dot(v, tile(W_ptr, d, h, D, H), x, input_precision=PRECISION, out_dtype=real)
    return x


@triton.jit
def zeros(CHUNKS: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr, real: tl.constexpr):
    """A matrix wider than a power of two: a tuple of blocks."""
    blocks = ()
    for _ in tl.static_range(CHUNKS):
        blocks = blocks + (tl.zeros([ROWS, COLS], dtype=real),)
    return blocks


@triton.jit
def finish(
    pulled, total, v_ptr, eps_ptr, g_ptr, r_ptr, u_ptr, b_ptr, log_sigma_ptr, row_ptr, curvature_ptr, out_ptr,
    row, curved, batch, D: tl.constexpr, KIND: tl.constexpr, SIGMA: tl.constexpr, M: tl.constexpr,
    real: tl.constexpr, BM: tl.constexpr, BD: tl.constexpr, MP: tl.constexpr,
):  # fmt: skip
    """From a W^T in blocks and each sample's sum over latent units to the results."""
    g = tl.zeros([BM, 1], dtype=real)
    if KIND == PULL:
        g = vector(g_ptr, row, batch, real)[:, None]
    squares = tl.zeros([BM, BD], dtype=real)
    for i in tl.static_range((D + BD - 1) // BD):
        d = i * BD + tl.arange(0, BD)
        keep = (row < batch)[:, None] & (d < D)[None, :]
        v = visible(v_ptr, eps_ptr, row, d, batch, D, SIGMA, real).to(real)
        precision = tl.exp(-2.0 * vector(log_sigma_ptr, d, D, real))[None, :]
        z = tl.where(keep, v - vector(b_ptr, d, D, real)[None, :], 0.0)
        away = z * precision
        out = pulled[i] - away
        if KIND == PULL:
            out = pulled[i] + g * away - precision * tile(r_ptr, row, d, batch, D).to(real)
        elif KIND == RESIDUAL:
            out = (out + tile(eps_ptr, row, d, batch, D).to(real) / SIGMA) / tl.cast(batch, real)
            out = tl.where(keep, out, 0.0)
            squares += 0.5 * tl.cast(batch, real) * out * out
        elif KIND == SLICED:
            out = tl.where(keep, out, 0.0)
            squares += 0.5 * out * out
            for m in tl.static_range(M):
                u = tile(u_ptr + m * batch * D, row, d, batch, D).to(real)
                lost = tl.sum(precision * u * u, 1)[:, None]
                curved -= tl.where(tl.arange(0, MP)[None, :] == m, lost, 0.0)
        else:
            squares += 0.5 * z * away
            if KIND == GIVEN:
                squares -= v * pulled[i]
        tl.store(out_ptr + row[:, None] * D + d[None, :], out, mask=keep)
    if KIND != PULL:
        tl.store(row_ptr + row, tl.sum(squares, 1) - total, mask=row < batch)
    if KIND == SLICED:
        m = tl.arange(0, MP)
        keep = (row < batch)[:, None] & (m < M)[None, :]
        tl.store(curvature_ptr + m[None, :] * batch + row[:, None], curved, mask=keep)


@triton.jit
def rows_kernel(
    v_ptr, eps_ptr, h_ptr, g_ptr, r_ptr, u_ptr, W_ptr, b_ptr, c_ptr, log_sigma_ptr,
    row_ptr, curvature_ptr, out_ptr, part_ptr, ticket_ptr, batch,
    D: tl.constexpr, H: tl.constexpr, M: tl.constexpr, MP: tl.constexpr, WIDTH: tl.constexpr,
    KIND: tl.constexpr, SIGMA: tl.constexpr, WIDE: tl.constexpr, SPLIT: tl.constexpr,
    PRECISION: tl.constexpr, BM: tl.constexpr, BD: tl.constexpr, BH: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """Program (block of samples, part of H, replica)."""
    real: tl.constexpr = tl.float64 if WIDE else tl.float32
    CHUNKS: tl.constexpr = (D + BD - 1) // BD
    replica = tl.program_id(2).to(tl.int64)
    v_ptr += replica * batch * D
    eps_ptr += replica * batch * D
    h_ptr += replica * batch * H
    g_ptr += replica * batch
    r_ptr += replica * batch * D
    u_ptr += replica * M * batch * D
    W_ptr += replica * D * H
    b_ptr += replica * D
    c_ptr += replica * H
    log_sigma_ptr += replica * D
    row_ptr += replica * batch
    curvature_ptr += replica * M * batch
    out_ptr += replica * batch * D

    row = tl.program_id(0) * BM + tl.arange(0, BM)  # an int: a replica's samples have less than 2^31 numbers
    part = tl.program_id(1)
    PER: tl.constexpr = ((H + BH - 1) // BH + SPLIT - 1) // SPLIT * BH
    g = tl.zeros([BM, 1], dtype=real)
    if KIND == PULL:
        g = vector(g_ptr, row, batch, real)[:, None]
    pulled = zeros(CHUNKS, BM, BD, real)
    sums = tl.zeros([BM, BH], dtype=real)
    curved = tl.zeros([BM, MP], dtype=real)
    # GIVEN has no inner loop, so W's whole block is loaded ahead: once only where twice is too much shared memory.
    LARGE: tl.constexpr = CHUNKS * BD * BH * W_ptr.dtype.element_ty.primitive_bitwidth > 45 * 1024 * 8
    for begin in tl.range(part * PER, min(part * PER + PER, H), BH, num_stages=2 if KIND == GIVEN and LARGE else 3):
        h = begin + tl.arange(0, BH)
        inside = (h < H)[None, :]
        c = vector(c_ptr, h, H, real)[None, :]
        if KIND == GIVEN:
            push = tile(h_ptr, row, h, batch, H).to(real)
            sums += push * c
        else:
            x = latent(v_ptr, eps_ptr, W_ptr, row, h, batch, D, H, SIGMA, real, PRECISION, BM, BH, BK) + c
            push = sigmoid(x)
            if KIND == FREE:
                sums += tl.where(inside, softplus(x), 0.0)
            elif KIND == SLICED:
                slope = push * (1.0 - push)
                for m in range(M):
                    q = latent(u_ptr + m * batch * D, u_ptr, W_ptr, row, h, batch, D, H, 0, real, PRECISION, BM, BH, BK)
                    gained = tl.sum(slope * q * q, 1)[:, None]
                    curved += tl.where(tl.arange(0, MP)[None, :] == m, gained, 0.0)
            elif KIND == PULL:
                t = latent(r_ptr, r_ptr, W_ptr, row, h, batch, D, H, 0, real, PRECISION, BM, BH, BK)
                push = push * ((1.0 - push) * t - g)
        moved = ()
        for i in tl.static_range(CHUNKS):
            w = tl.trans(tile(W_ptr, i * BD + tl.arange(0, BD), h, D, H))
            moved = moved + (tl.dot(push.to(w.dtype), w, pulled[i], input_precision=PRECISION, out_dtype=real),)
        pulled = moved

    total = tl.sum(sums, 1)
    if SPLIT == 1:
        finish(
            pulled, total, v_ptr, eps_ptr, g_ptr, r_ptr, u_ptr, b_ptr, log_sigma_ptr, row_ptr, curvature_ptr, out_ptr,
            row, curved, batch, D, KIND, SIGMA, M, real, BM, BD, MP,
        )  # fmt: skip
    else:
        to_ptr = part_ptr + (replica * SPLIT + part) * batch * WIDTH  # 64 bits wide, as a replica's number
        at = row * WIDTH
        m = tl.arange(0, MP)
        for i in tl.static_range(CHUNKS):
            d = i * BD + tl.arange(0, BD)
            keep = (row < batch)[:, None] & (d < D)[None, :]
            tl.store(to_ptr + at[:, None] + d[None, :], pulled[i], mask=keep)
        tl.store(to_ptr + at + D, total, mask=row < batch)
        tl.store(to_ptr + at[:, None] + (D + 1 + m)[None, :], curved, mask=(row < batch)[:, None])
        tl.debug_barrier()
        blocks = tl.num_programs(0)
        if tl.atomic_add(ticket_ptr + replica * blocks + tl.program_id(0), 1, sem="acq_rel") == SPLIT - 1:
            pulled = zeros(CHUNKS, BM, BD, real)
            total = tl.zeros([BM], dtype=real)
            curved = tl.zeros([BM, MP], dtype=real)
            for s in range(SPLIT):
                from_ptr = part_ptr + (replica * SPLIT + s) * batch * WIDTH
                moved = ()
                for i in tl.static_range(CHUNKS):
                    d = i * BD + tl.arange(0, BD)
                    keep = (row < batch)[:, None] & (d < D)[None, :]
                    here = from_ptr + at[:, None] + d[None, :]
                    moved = moved + (pulled[i] + tl.load(here, mask=keep, other=0.0, cache_modifier=".cg"),)
                pulled = moved
                total += tl.load(from_ptr + at + D, mask=row < batch, other=0.0, cache_modifier=".cg")
                columns = from_ptr + at[:, None] + (D + 1 + m)[None, :]
                curved += tl.load(columns, mask=(row < batch)[:, None], other=0.0, cache_modifier=".cg")
            finish(
                pulled, total, v_ptr, eps_ptr, g_ptr, r_ptr, u_ptr, b_ptr, log_sigma_ptr, row_ptr, curvature_ptr,
                out_ptr, row, curved, batch, D, KIND, SIGMA, M, real, BM, BD, MP,
            )  # fmt: skip
