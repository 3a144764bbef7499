"""The upper level of the bi-level GRBM step, and its reverse through the unrolled steps: a launch each.

`residual_kernel` tiles B x D. A program of `reverse_kernel` has BH latent units, like the lower one: their reverse
reads no other unit either. Shape tags and derivation as in README.md.
"""

# The kernels are in a language of their own, which has no types.
# mypy: disable-error-code="no-untyped-def,untyped-decorator"

import triton
import triton.language as tl

from eblvm.kernels.bernoulli_lower.triton import coefficients, sigmoid
from eblvm.kernels.grbm.triton_rows import latent, put, tile, vector, visible
from eblvm.kernels.grbm_bilevel.triton_lower import corrections
from eblvm.kernels.grbm_bilevel.triton_products import across, against, summed


@triton.jit
def residual_kernel(
    v_ptr, eps_ptr, z_ptr, noise_ptr, W_ptr, AN_ptr, b_ptr, log_sigma_ptr, r_ptr, batch,
    D: tl.constexpr, H: tl.constexpr, SIGMA: tl.constexpr, TAU: tl.constexpr, WIDE: tl.constexpr,
    PRECISION: tl.constexpr, BM: tl.constexpr, BD: tl.constexpr, BH: tl.constexpr,
):  # fmt: skip
    """r = (h W^T + (s - h) A - (V - b) / sigma^2 + eps / SIGMA) / B, program (samples, visible units, replica)."""
    real: tl.constexpr = tl.float64 if WIDE else tl.float32
    replica = tl.program_id(2).to(tl.int64)
    row, d = tl.program_id(0) * BM + tl.arange(0, BM), tl.program_id(1) * BD + tl.arange(0, BD)
    z_ptr += replica * batch * H
    noise_ptr += replica * batch * H
    eps_ptr += replica * batch * D
    total = tl.zeros([BM, BD], dtype=real)
    for begin in range(0, H, BH):
        h = begin + tl.arange(0, BH)
        z = tile(z_ptr, row, h, batch, H).to(real)
        sample = sigmoid((z + tile(noise_ptr, row, h, batch, H).to(real)) / TAU)
        w = tl.trans(tile(W_ptr + replica * D * H, d, h, D, H))
        total = tl.dot(sample.to(w.dtype), w, total, input_precision=PRECISION, out_dtype=real)
        gap = (sigmoid(z) - sample).to(w.dtype)
        A = tile(AN_ptr + replica * D * H, h, d, H, D)
        total = tl.dot(gap, A, total, input_precision=PRECISION, out_dtype=real)
    V = visible(v_ptr + replica * batch * D, eps_ptr, row, d, batch, D, SIGMA, real).to(real)
    away = V - vector(b_ptr + replica * D, d, D, real)[None, :]
    away *= tl.exp(-2.0 * vector(log_sigma_ptr + replica * D, d, D, real))[None, :]
    out = (total - away + tile(eps_ptr, row, d, batch, D).to(real) / SIGMA) / tl.cast(batch, real)
    put(r_ptr + replica * batch * D, out, row, d, batch, D)


@triton.jit
def adam_reverse(
    p_bar, m_bar, v_bar, g, m, v, rate, c2, B1: tl.constexpr, B2: tl.constexpr, EPS: tl.constexpr,
    EPS_ROOT: tl.constexpr,
):  # fmt: skip
    """Cotangents of the gradient and of the moments before the step."""
    m = B1 * m + (1 - B1) * g
    v = B2 * v + (1 - B2) * (g * g)
    root = tl.sqrt(v / c2 + EPS_ROOT)
    pull = rate * p_bar / (root + EPS)
    m_bar = m_bar - pull
    v_bar = v_bar + pull * m / (root + EPS) / (2.0 * c2 * root)
    return (1 - B1) * m_bar + 2.0 * (1 - B2) * g * v_bar, B1 * m_bar, B2 * v_bar


@triton.jit
def dual_reverse(
    v_ptr, eps_ptr, r_ptr, z_ptr, x_ptr, noise_ptr, M_ptr, gap_ptr, z_bar_ptr, S_bar_ptr, A_bar_ptr, N, lr, h, batch,
    apart, D: tl.constexpr, H: tl.constexpr, SIGMA: tl.constexpr, TAU: tl.constexpr, EXACT: tl.constexpr,
    real: tl.constexpr, PRECISION: tl.constexpr, BM: tl.constexpr, BD: tl.constexpr, BH: tl.constexpr,
    BK: tl.constexpr,
):  # fmt: skip
    """N steps on the logits in reverse: S^ through A_N, then delta^ = S^ - lr M l^; the sum of all x^ over samples."""
    c_bar = tl.zeros([BH], dtype=real)
    for begin in range(0, D, BD):
        d = begin + tl.arange(0, BD)
        A_bar = summed(gap_ptr, r_ptr, r_ptr, h, d, batch, D, H, 0, real, PRECISION, BM, BH, BD)
        put(A_bar_ptr, A_bar, h, d, H, D)
    tl.debug_barrier()
    for begin in range(0, batch, BM):
        row = begin + tl.arange(0, BM)
        S_bar = against(v_ptr, eps_ptr, A_bar_ptr, row, h, batch, D, H, SIGMA, real, PRECISION, BM, BH, BK)
        put(S_bar_ptr, -lr * S_bar, row, h, batch, H)
    tl.debug_barrier()
    for back in range(N):
        n = N - 1 - back
        here = z_ptr + n * apart
        for begin in range(0, batch, BM):
            row = begin + tl.arange(0, BM)
            keep = (row < batch)[:, None] & (h < H)[None, :]
            moved = across(M_ptr, z_bar_ptr, row, h, batch, H, real, PRECISION, BM, BH)
            delta_bar = (tile(S_bar_ptr, row, h, batch, H).to(real) - lr * moved) / tl.cast(batch, real)
            z = tile(here, row, h, batch, H).to(real)
            noise = z
            if not EXACT:
                noise = tile(noise_ptr + n * apart, row, h, batch, H).to(real)
            _, _, slope, _, curvature = coefficients(z, tile(x_ptr, row, h, batch, H).to(real), noise, TAU, EXACT)
            x_bar = tl.where(keep, -delta_bar * slope, 0.0)
            c_bar += tl.sum(x_bar, 0)
            put(here, x_bar, row, h, batch, H)
            # Not yet in l^: other rows of this step still read it.
            put(gap_ptr, delta_bar * curvature, row, h, batch, H)
        tl.debug_barrier()
        for begin in range(0, batch, BM):
            row = begin + tl.arange(0, BM)
            z_bar = tile(z_bar_ptr, row, h, batch, H).to(real) + tile(gap_ptr, row, h, batch, H).to(real)
            put(z_bar_ptr, z_bar, row, h, batch, H)
        tl.debug_barrier()
    return c_bar


@triton.jit
def reverse_kernel(
    v_ptr, eps_ptr, noise_ptr, r_ptr, W_ptr, b_ptr, log_sigma_ptr, AN_ptr, count_ptr, unroll_rate_ptr, x_ptr, z_ptr,
    G_ptr, m_ptr, v2_ptr, bias_ptr, M_ptr, S_ptr, gap_ptr, z_bar_ptr, A_bar_ptr, G_bar_ptr, m_bar_ptr, v_bar_ptr,
    W_bar_ptr, b_bar_ptr, c_bar_ptr, log_sigma_bar_ptr, loss_ptr, batch, K, N,
    D: tl.constexpr, H: tl.constexpr, SIGMA: tl.constexpr, TAU: tl.constexpr, EXACT: tl.constexpr, SGD: tl.constexpr,
    SHARED: tl.constexpr, UNROLLED: tl.constexpr, DUAL: tl.constexpr,
    B1: tl.constexpr, B2: tl.constexpr, EPS: tl.constexpr, EPS_ROOT: tl.constexpr, WIDE: tl.constexpr,
    PRECISION: tl.constexpr, BM: tl.constexpr, BD: tl.constexpr, BH: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr,
):  # fmt: skip
    """Program (block of latent units, then of visible ones; replica). x^ of an unrolled step replaces its logits."""
    real: tl.constexpr = tl.float64 if WIDE else tl.float32
    BLOCKS: tl.constexpr = (H + BH - 1) // BH
    replica, replicas = tl.program_id(1).to(tl.int64), tl.num_programs(1).to(tl.int64)
    visibles, latents, weights = batch * D, batch * H, D * H
    count = tl.cast(batch, real)
    v_ptr += replica * visibles
    eps_ptr += replica * visibles
    r_ptr += replica * visibles
    last_ptr = eps_ptr
    noise_ptr += replica * latents
    if not SHARED:
        last_ptr = eps_ptr + (K + N) * replicas * visibles
    block = tl.program_id(0)
    if block >= BLOCKS:
        d = (block - BLOCKS) * BV + tl.arange(0, BV)
        b = vector(b_ptr + replica * D, d, D, real)[None, :]
        precision = tl.exp(-2.0 * vector(log_sigma_ptr + replica * D, d, D, real))
        b_bar = tl.zeros([BV], dtype=real)
        log_sigma_bar = tl.zeros([BV], dtype=real)
        squares = tl.zeros([BV], dtype=real)
        for begin in range(0, batch, BM):
            row = begin + tl.arange(0, BM)
            r = tile(r_ptr, row, d, batch, D).to(real)
            away = visible(v_ptr, last_ptr, row, d, batch, D, SIGMA, real).to(real) - b
            b_bar += tl.sum(r, 0)
            log_sigma_bar += tl.sum(r * away, 0)
            squares += tl.sum(r * r, 0)
        tl.store(b_bar_ptr + replica * D + d, b_bar * precision, mask=d < D)
        tl.store(log_sigma_bar_ptr + replica * D + d, 2.0 * log_sigma_bar * precision, mask=d < D)
        blocks = tl.num_programs(0) - BLOCKS
        tl.store(loss_ptr + replica * blocks + block - BLOCKS, 0.5 * count * tl.sum(squares, 0))
    else:
        h = block * BH + tl.arange(0, BH)
        inside = h < H
        W_ptr += replica * weights
        AN_ptr += replica * weights
        A_bar_ptr += replica * weights
        z_ptr += replica * latents
        gap_ptr += replica * latents
        z_bar_ptr += replica * latents
        x_ptr += replica * latents
        upper_ptr = z_ptr + N * replicas * latents
        sample_ptr = noise_ptr
        if not EXACT:
            sample_ptr = noise_ptr + (K + N) * replicas * latents
        c_bar = tl.zeros([BH], dtype=real)
        a_bar = tl.zeros([BH], dtype=real)

        # The upper level: h in the place of its logits, s - h and l^.
        for begin in range(0, batch, BM):
            row = begin + tl.arange(0, BM)
            keep = (row < batch)[:, None] & inside[None, :]
            z = tile(upper_ptr, row, h, batch, H).to(real)
            sample = sigmoid((z + tile(sample_ptr, row, h, batch, H).to(real)) / TAU)
            s = sigmoid(z)
            put(upper_ptr, sample, row, h, batch, H)
            if UNROLLED:
                rW = latent(r_ptr, r_ptr, W_ptr, row, h, batch, D, H, 0, real, PRECISION, BM, BH, BK)
                rA = against(r_ptr, r_ptr, AN_ptr, row, h, batch, D, H, 0, real, PRECISION, BM, BH, BK)
                z_bar = tl.where(keep, (rW - rA) * sample * (1.0 - sample) / TAU + rA * s * (1.0 - s), 0.0)
                put(z_bar_ptr, z_bar, row, h, batch, H)
                put(gap_ptr, s - sample, row, h, batch, H)
                a_bar += tl.sum(z_bar, 0)
        tl.debug_barrier()

        if DUAL:
            noises = noise_ptr
            if not EXACT:
                noises = noise_ptr + K * replicas * latents
            c_bar = dual_reverse(
                v_ptr, eps_ptr, r_ptr, z_ptr, x_ptr, noises, M_ptr + replica * batch * batch, gap_ptr, z_bar_ptr,
                S_ptr + replica * latents, A_bar_ptr, N, tl.load(unroll_rate_ptr + replica).to(real), h, batch,
                replicas * latents, D, H, SIGMA, TAU, EXACT, real, PRECISION, BM, BD, BH, BK,
            )  # fmt: skip
        elif UNROLLED:
            G_ptr += replica * weights
            m_ptr += replica * weights
            v2_ptr += replica * weights
            G_bar_ptr += replica * weights
            m_bar_ptr += replica * weights
            v_bar_ptr += replica * weights
            done = tl.load(count_ptr + replica).to(real)
            lr = tl.load(unroll_rate_ptr + replica).to(real)
            ma_bar = tl.zeros([BH], dtype=real)
            va_bar = tl.zeros([BH], dtype=real)
            for back in range(N):
                n = N - 1 - back
                at = n * replicas * weights
                earlier = tl.where(n > 0, H, 0)  # rows that a step before this one reads; nothing goes back to phi_0
                e, y, e_next = eps_ptr, x_ptr, eps_ptr
                if not SHARED:
                    e, y = eps_ptr + (K + n) * replicas * visibles, x_ptr + (K + n) * replicas * latents
                    e_next = e + replicas * visibles
                noises = noise_ptr
                if not EXACT:
                    noises = noise_ptr + (K + n) * replicas * latents
                rate, c2 = corrections(done + (K + n + 1), lr, B1, B2, real)

                # A^ after this step, from l^ of the later ones; then the optimiser's reverse.
                for begin in range(0, D, BD):
                    d = begin + tl.arange(0, BD)
                    A_bar = summed(z_bar_ptr, v_ptr, e_next, h, d, batch, D, H, SIGMA, real, PRECISION, BM, BH, BD)
                    m_bar = tl.zeros([BH, BD], dtype=real)
                    v_bar = tl.zeros([BH, BD], dtype=real)
                    if back == 0:
                        A_bar += summed(gap_ptr, r_ptr, r_ptr, h, d, batch, D, H, 0, real, PRECISION, BM, BH, BD)
                    else:
                        A_bar += tile(A_bar_ptr, h, d, H, D).to(real)
                        if not SGD:
                            m_bar += tile(m_bar_ptr, h, d, H, D).to(real)
                            v_bar += tile(v_bar_ptr, h, d, H, D).to(real)
                    put(A_bar_ptr, A_bar, h, d, earlier, D)
                    if SGD:
                        put(G_bar_ptr, -lr * A_bar, h, d, H, D)
                    else:
                        g = tile(G_ptr + at, h, d, H, D).to(real)
                        m, v2 = tile(m_ptr + at, h, d, H, D).to(real), tile(v2_ptr + at, h, d, H, D).to(real)
                        G_bar, m_bar, v_bar = adam_reverse(
                            A_bar, m_bar, v_bar, g, m, tl.where((h < H)[:, None] & (d < D)[None, :], v2, 1.0),
                            rate[:, None], c2[:, None], B1, B2, EPS, EPS_ROOT,
                        )  # fmt: skip
                        put(G_bar_ptr, G_bar, h, d, H, D)
                        put(m_bar_ptr, m_bar, h, d, earlier, D)
                        put(v_bar_ptr, v_bar, h, d, earlier, D)
                a_grad_bar = -lr * a_bar
                if not SGD:
                    tape = bias_ptr + (n * replicas + replica) * 3 * H + h
                    a_grad_bar, ma_bar, va_bar = adam_reverse(
                        a_bar, ma_bar, va_bar, tl.load(tape, mask=inside, other=0.0).to(real),
                        tl.load(tape + H, mask=inside, other=0.0).to(real),
                        tl.load(tape + 2 * H, mask=inside, other=1.0).to(real), rate, c2, B1, B2, EPS, EPS_ROOT,
                    )  # fmt: skip
                tl.debug_barrier()

                # delta^ of this step, and through bernoulli_lower to its logits and to x.
                here = z_ptr + n * replicas * latents
                for begin in range(0, batch, BM):
                    row = begin + tl.arange(0, BM)
                    keep = (row < batch)[:, None] & inside[None, :]
                    delta_bar = against(v_ptr, e, G_bar_ptr, row, h, batch, D, H, SIGMA, real, PRECISION, BM, BH, BK)
                    delta_bar = (delta_bar + a_grad_bar[None, :]) / count
                    z = tile(here, row, h, batch, H).to(real)
                    noise = z
                    if not EXACT:
                        noise = tile(noises, row, h, batch, H).to(real)
                    _, _, slope, _, curvature = coefficients(z, tile(y, row, h, batch, H).to(real), noise, TAU, EXACT)
                    z_bar = tl.where(keep, delta_bar * curvature, 0.0)
                    x_bar = tl.where(keep, -delta_bar * slope, 0.0)
                    put(z_bar_ptr, z_bar, row, h, batch, H)
                    put(here, x_bar, row, h, batch, H)
                    c_bar += tl.sum(x_bar, 0)
                    a_bar += tl.sum(z_bar, 0)
                tl.debug_barrier()

        # W's gradient: h and r, x^ and V of every unrolled step.
        for begin in range(0, D, BD):
            d = begin + tl.arange(0, BD)
            W_bar = summed(upper_ptr, r_ptr, r_ptr, h, d, batch, D, H, 0, real, PRECISION, BM, BH, BD)
            for n in range(N):
                e = eps_ptr
                if not SHARED:
                    e = eps_ptr + (K + n) * replicas * visibles
                here = z_ptr + n * replicas * latents
                W_bar += summed(here, v_ptr, e, h, d, batch, D, H, SIGMA, real, PRECISION, BM, BH, BD)
            put(W_bar_ptr + replica * weights, tl.trans(W_bar), d, h, D, H)
        tl.store(c_bar_ptr + replica * H + h, c_bar, mask=inside)
