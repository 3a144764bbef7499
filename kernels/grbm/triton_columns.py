"""One pass over the samples for a block of latent units: the gradients of a GRBM's parameters, all products inside.

A program keeps the gradient of BH of W's columns, or of EACH blocks of BD of their rows, in registers while the samples
stream past; x = c + v W and what else it needs of size B x H is made again, and nothing of that size is written.
Programs beyond those of W sum over the samples of the visible units.
"""

# The kernels are in a language of their own, which has no types and no unpacking.
# mypy: disable-error-code="no-untyped-def,untyped-decorator,assignment"
# ruff: noqa: RUF005

import triton
import triton.language as tl

from eblvm.kernels.bernoulli_lower.triton import sigmoid
from eblvm.kernels.grbm.triton_rows import GIVEN, RESIDUAL, SLICED, latent, tile, vector, visible, zeros


@triton.jit
def cotangent(g, r_ptr, v_ptr, row, d, batch, D: tl.constexpr, KIND: tl.constexpr, real: tl.constexpr):
    """A tile of the cotangent of h W^T: r; SLICED: g score; GIVEN: r - g v."""
    r = tile(r_ptr, row, d, batch, D)
    if KIND == SLICED:
        r = (g * r.to(real)).to(r.dtype)
    if KIND == GIVEN:
        r = (r.to(real) - g * tile(v_ptr, row, d, batch, D).to(real)).to(r.dtype)
    return r


@triton.jit
def added(left_ptr, right, sums, row, start, batch, D: tl.constexpr, PRECISION: tl.constexpr, real: tl.constexpr,
          EACH: tl.constexpr, BD: tl.constexpr):  # fmt: skip
    """sums + left^T right, in blocks of D."""
    totals = ()
    for i in tl.static_range(EACH):
        left = tile(left_ptr, row, start + i * BD + tl.arange(0, BD), batch, D)
        pair = tl.dot(tl.trans(left), right.to(left.dtype), sums[i], input_precision=PRECISION, out_dtype=real)
        totals = totals + (pair,)
    return totals


@triton.jit
def latent_columns(
    block, start, part, g_ptr, r_ptr, v_ptr, eps_ptr, h_ptr, u_ptr, k_ptr, W_ptr, c_ptr,
    W_bar_ptr, c_bar_ptr, h_bar_ptr, part_ptr, ticket_ptr, batch,
    D: tl.constexpr, H: tl.constexpr, M: tl.constexpr, KIND: tl.constexpr, SIGMA: tl.constexpr, WANTS_H: tl.constexpr,
    real: tl.constexpr, SPLIT: tl.constexpr, PRECISION: tl.constexpr,
    EACH: tl.constexpr, BM: tl.constexpr, BD: tl.constexpr, BH: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """Gradients of a block of W's columns, from row `start` on, and of c."""
    h = block * BH + tl.arange(0, BH)
    c = vector(c_ptr, h, H, real)
    sums = zeros(EACH, BD, BH, real)
    c_bar = tl.zeros([BH], dtype=real)
    per = tl.cdiv(tl.cdiv(batch, BM), SPLIT) * BM
    for begin in range(part * per, min(part * per + per, batch), BM):
        row = begin + tl.arange(0, BM)
        g = tl.zeros([BM, 1], dtype=real)
        if KIND != RESIDUAL:
            g = vector(g_ptr, row, batch, real)[:, None]
        x = tl.zeros([BM, BH], dtype=real)
        t = tl.zeros([BM, BH], dtype=real)
        if KIND != GIVEN or WANTS_H:
            for inner in range(0, D, BK):
                d = inner + tl.arange(0, BK)
                w = tile(W_ptr, d, h, D, H)
                r = cotangent(g, r_ptr, v_ptr, row, d, batch, D, KIND, real)
                t = tl.dot(r, w, t, input_precision=PRECISION, out_dtype=real)
                if KIND != GIVEN:
                    v = visible(v_ptr, eps_ptr, row, d, batch, D, SIGMA, real)
                    x = tl.dot(v, w, x, input_precision=PRECISION, out_dtype=real)
        if KIND == GIVEN:
            mean = tile(h_ptr, row, h, batch, H).to(real)
            c_bar -= tl.sum(g * mean, 0)
            x_bar = mean  # unused
            if WANTS_H and start == 0:
                keep = (row < batch)[:, None] & (h < H)[None, :]
                tl.store(h_bar_ptr + row[:, None] * H + h[None, :], t - g * c[None, :], mask=keep)
        else:
            mean = sigmoid(x + c[None, :])
            slope = mean * (1.0 - mean)
            if KIND == SLICED:
                for m in range(M):
                    along_ptr = u_ptr + m * batch * D
                    k = vector(k_ptr + m * batch, row, batch, real)[:, None]
                    q = latent(along_ptr, along_ptr, W_ptr, row, h, batch, D, H, 0, real, PRECISION, BM, BH, BK)
                    t += (1.0 - 2.0 * mean) * k * q * q
                    sums = added(along_ptr, 2.0 * k * slope * q, sums, row, start, batch, D, PRECISION, real, EACH, BD)
            x_bar = slope * t
            if KIND != SLICED:
                x_bar -= g * mean
            x_bar = tl.where((row < batch)[:, None], x_bar, 0.0)
            c_bar += tl.sum(x_bar, 0)
        moved = ()
        for i in tl.static_range(EACH):
            d = start + i * BD + tl.arange(0, BD)
            r = cotangent(g, r_ptr, v_ptr, row, d, batch, D, KIND, real)
            pair = tl.dot(tl.trans(r), mean.to(r.dtype), sums[i], input_precision=PRECISION, out_dtype=real)
            if KIND != GIVEN:
                v = visible(v_ptr, eps_ptr, row, d, batch, D, SIGMA, real)
                pair = tl.dot(tl.trans(v), x_bar.to(v.dtype), pair, input_precision=PRECISION, out_dtype=real)
            moved = moved + (pair,)
        sums = moved

    if SPLIT == 1:
        for i in tl.static_range(EACH):
            d = start + i * BD + tl.arange(0, BD)
            tl.store(W_bar_ptr + d[:, None] * H + h[None, :], sums[i], mask=(d < D)[:, None] & (h < H)[None, :])
        if start == 0:
            tl.store(c_bar_ptr + h, c_bar, mask=h < H)
    else:
        for i in tl.static_range(EACH):
            d = start + i * BD + tl.arange(0, BD)
            here = part_ptr + (part * (D + 1) + d)[:, None] * H + h[None, :]
            tl.store(here, sums[i], mask=(d < D)[:, None] & (h < H)[None, :])
        if start == 0:
            tl.store(part_ptr + (part * (D + 1) + D) * H + h, c_bar, mask=h < H)
        tl.debug_barrier()
        if tl.atomic_add(ticket_ptr + tl.program_id(0), 1, sem="acq_rel") == SPLIT - 1:
            for i in tl.static_range(EACH):
                d = start + i * BD + tl.arange(0, BD)
                keep = (d < D)[:, None] & (h < H)[None, :]
                whole = tl.zeros([BD, BH], dtype=real)
                for s in range(SPLIT):
                    here = part_ptr + (s * (D + 1) + d)[:, None] * H + h[None, :]
                    whole += tl.load(here, mask=keep, other=0.0, cache_modifier=".cg")
                tl.store(W_bar_ptr + d[:, None] * H + h[None, :], whole, mask=keep)
            if start == 0:
                c_bar = tl.zeros([BH], dtype=real)
                for s in range(SPLIT):
                    of_c = part_ptr + (s * (D + 1) + D) * H + h
                    c_bar += tl.load(of_c, mask=h < H, other=0.0, cache_modifier=".cg")
                tl.store(c_bar_ptr + h, c_bar, mask=h < H)


@triton.jit
def visible_columns(
    block, g_ptr, r_ptr, v_ptr, eps_ptr, score_ptr, u_ptr, k_ptr, row_ptr, b_ptr, log_sigma_ptr,
    b_bar_ptr, log_sigma_bar_ptr, v_bar_ptr, loss_ptr, batch,
    D: tl.constexpr, M: tl.constexpr, KIND: tl.constexpr, SIGMA: tl.constexpr, WANTS_V: tl.constexpr,
    real: tl.constexpr, BM: tl.constexpr, BV: tl.constexpr,
):  # fmt: skip
    """Gradients of a block of b and log_sigma; GIVEN: of v; RESIDUAL: the loss from its rows."""
    d = block * BV + tl.arange(0, BV)
    b = vector(b_ptr, d, D, real)[None, :]
    precision = tl.exp(-2.0 * vector(log_sigma_ptr, d, D, real))[None, :]
    b_bar, log_sigma_bar = tl.zeros([BV], dtype=real), tl.zeros([BV], dtype=real)
    for begin in range(0, batch, BM):
        row = begin + tl.arange(0, BM)
        keep = (row < batch)[:, None] & (d < D)[None, :]
        g = tl.zeros([BM, 1], dtype=real)
        r = tile(r_ptr, row, d, batch, D).to(real)
        if KIND != RESIDUAL:
            g = vector(g_ptr, row, batch, real)[:, None]
        if KIND == SLICED:
            r = g * r
            g = tl.zeros([BM, 1], dtype=real)
        z = tl.where(keep, visible(v_ptr, eps_ptr, row, d, batch, D, SIGMA, real).to(real) - b, 0.0)
        away = z * precision
        b_bar += tl.sum(r * precision - g * away, 0)
        log_sigma_bar += tl.sum(away * (2.0 * r - g * z), 0)
        if WANTS_V:
            score = tile(score_ptr, row, d, batch, D).to(real)
            tl.store(v_bar_ptr + row[:, None] * D + d[None, :], -g * score - r * precision, mask=keep)
        if KIND == SLICED:
            for m in range(M):
                u = tile(u_ptr + m * batch * D, row, d, batch, D).to(real)
                k = vector(k_ptr + m * batch, row, batch, real)[:, None]
                log_sigma_bar += tl.sum(2.0 * k * precision * u * u, 0)
    tl.store(b_bar_ptr + d, b_bar, mask=d < D)
    tl.store(log_sigma_bar_ptr + d, log_sigma_bar, mask=d < D)
    if KIND == RESIDUAL:  # noqa: SIM102
        if block == 0:
            loss = tl.zeros([BM], dtype=real)
            for begin in range(0, batch, BM):
                loss += vector(row_ptr, begin + tl.arange(0, BM), batch, real)
            tl.store(loss_ptr, tl.sum(loss, 0))


@triton.jit
def columns_kernel(
    g_ptr, r_ptr, v_ptr, eps_ptr, h_ptr, score_ptr, u_ptr, k_ptr, row_ptr, W_ptr, b_ptr, c_ptr, log_sigma_ptr,
    W_bar_ptr, b_bar_ptr, c_bar_ptr, log_sigma_bar_ptr, v_bar_ptr, h_bar_ptr, loss_ptr, part_ptr, ticket_ptr, batch,
    D: tl.constexpr, H: tl.constexpr, M: tl.constexpr,
    KIND: tl.constexpr, SIGMA: tl.constexpr, WANTS_V: tl.constexpr, WANTS_H: tl.constexpr,
    WIDE: tl.constexpr, SPLIT: tl.constexpr, PRECISION: tl.constexpr,
    EACH: tl.constexpr, BM: tl.constexpr, BD: tl.constexpr, BH: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr,
):  # fmt: skip
    """Program (block of W, then of visible units; part of the batch, replica)."""
    real: tl.constexpr = tl.float64 if WIDE else tl.float32
    ACROSS: tl.constexpr = (H + BH - 1) // BH
    BLOCKS: tl.constexpr = (D + EACH * BD - 1) // (EACH * BD) * ACROSS
    replica = tl.program_id(2).to(tl.int64)
    g_ptr += replica * batch
    r_ptr += replica * batch * D
    v_ptr += replica * batch * D
    eps_ptr += replica * batch * D
    u_ptr += replica * M * batch * D
    k_ptr += replica * M * batch
    block, part = tl.program_id(0), tl.program_id(1)
    if block < BLOCKS:
        latent_columns(
            block % ACROSS, block // ACROSS * (EACH * BD), part, g_ptr, r_ptr, v_ptr, eps_ptr,
            h_ptr + replica * batch * H, u_ptr, k_ptr,
            W_ptr + replica * D * H, c_ptr + replica * H, W_bar_ptr + replica * D * H, c_bar_ptr + replica * H,
            h_bar_ptr + replica * batch * H, part_ptr + replica * SPLIT * (D + 1) * H, ticket_ptr + replica * BLOCKS,
            batch, D, H, M, KIND, SIGMA, WANTS_H, real, SPLIT, PRECISION, EACH, BM, BD, BH, BK,
        )  # fmt: skip
    elif part == 0:
        visible_columns(
            block - BLOCKS, g_ptr, r_ptr, v_ptr, eps_ptr, score_ptr + replica * batch * D, u_ptr, k_ptr,
            row_ptr + replica * batch, b_ptr + replica * D, log_sigma_ptr + replica * D, b_bar_ptr + replica * D,
            log_sigma_bar_ptr + replica * D, v_bar_ptr + replica * batch * D, loss_ptr + replica, batch,
            D, M, KIND, SIGMA, WANTS_V, real, BM, BV,
        )  # fmt: skip
