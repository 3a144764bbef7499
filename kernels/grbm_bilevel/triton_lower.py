"""All lower steps of the bi-level GRBM step in one launch: real ones, then unrolled ones with their tape.

The logits of a latent unit depend on its own row of A alone, so a program runs all K + N steps of its BH units without
waiting for another. In a step: l = V A^T + a of all samples, with bernoulli_lower's delta behind that product; then the
gradient delta^T V in blocks of D, each followed at once by Adam or SGD. Shape tags as in README.md.
"""

# The kernels are in a language of their own, which has no types.
# mypy: disable-error-code="no-untyped-def,untyped-decorator"

import triton
import triton.language as tl

from eblvm.kernels.bernoulli_lower.triton import coefficients, softplus
from eblvm.kernels.grbm.triton_rows import latent, put, tile, vector, visible
from eblvm.kernels.grbm_bilevel.triton_products import across, against, copied, summed


@triton.jit
def adam(p, g, m, v, rate, c2, B1: tl.constexpr, B2: tl.constexpr, EPS: tl.constexpr, EPS_ROOT: tl.constexpr):
    m = B1 * m + (1 - B1) * g
    v = B2 * v + (1 - B2) * (g * g)
    return p - rate * m / (tl.sqrt(v / c2 + EPS_ROOT) + EPS), m, v


@triton.jit
def corrections(t, lr, B1: tl.constexpr, B2: tl.constexpr, real: tl.constexpr):
    """lr / (1 - B1^t) and 1 - B2^t."""
    one = tl.zeros([1], dtype=real) + 1.0
    powers1 = tl.exp(t * tl.log(one * B1)) if B1 > 0 else one * 0.0
    powers2 = tl.exp(t * tl.log(one * B2)) if B2 > 0 else one * 0.0
    return lr / (1.0 - powers1), 1.0 - powers2


@triton.jit
def one_step(
    A_ptr, m_ptr, v2_ptr, m_to, v2_to, G_to, z_to, x_ptr, noise_ptr, delta_ptr, v_ptr, eps_ptr,
    a, ma, va, t, lr, h, batch, D: tl.constexpr, H: tl.constexpr, SIGMA: tl.constexpr, TAU: tl.constexpr,
    EXACT: tl.constexpr, SGD: tl.constexpr, TAPED: tl.constexpr,
    B1: tl.constexpr, B2: tl.constexpr, EPS: tl.constexpr, EPS_ROOT: tl.constexpr, real: tl.constexpr,
    PRECISION: tl.constexpr, BM: tl.constexpr, BD: tl.constexpr, BH: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """A and its moments moved in memory; (a, its moments, its gradient, sum of kl) of the block."""
    count = tl.cast(batch, real)
    a_grad = tl.zeros([BH], dtype=real)
    kl = tl.zeros([BH], dtype=real)
    for begin in range(0, batch, BM):
        row = begin + tl.arange(0, BM)
        keep = (row < batch)[:, None] & (h < H)[None, :]
        z = against(v_ptr, eps_ptr, A_ptr, row, h, batch, D, H, SIGMA, real, PRECISION, BM, BH, BK) + a[None, :]
        x = tile(x_ptr, row, h, batch, H).to(real)
        noise = z
        if not EXACT:
            noise = tile(noise_ptr, row, h, batch, H).to(real)
        _, sample, _, delta, _ = coefficients(z, x, noise, TAU, EXACT)
        delta = tl.where(keep, delta, 0.0) / count
        put(delta_ptr, delta, row, h, batch, H)
        if TAPED:
            put(z_to, z, row, h, batch, H)
        a_grad += tl.sum(delta, 0)
        kl += tl.sum(tl.where(keep, sample * (z - x) - softplus(z), 0.0), 0)
    tl.debug_barrier()
    rate, c2 = corrections(t, lr, B1, B2, real)
    for begin in range(0, D, BD):
        d = begin + tl.arange(0, BD)
        G = summed(delta_ptr, v_ptr, eps_ptr, h, d, batch, D, H, SIGMA, real, PRECISION, BM, BH, BD)
        A = tile(A_ptr, h, d, H, D).to(real)
        if SGD:
            put(A_ptr, A - lr * G, h, d, H, D)
        else:
            m, v2 = tile(m_ptr, h, d, H, D).to(real), tile(v2_ptr, h, d, H, D).to(real)
            A, m, v2 = adam(A, G, m, v2, rate[:, None], c2[:, None], B1, B2, EPS, EPS_ROOT)
            put(A_ptr, A, h, d, H, D)
            put(m_to, m, h, d, H, D)
            put(v2_to, v2, h, d, H, D)
            if TAPED:
                put(G_to, G, h, d, H, D)
    tl.debug_barrier()
    if SGD:
        a = a - lr * a_grad
    else:
        a, ma, va = adam(a, a_grad, ma, va, rate, c2, B1, B2, EPS, EPS_ROOT)
    return a, ma, va, a_grad, tl.sum(kl, 0)


@triton.jit
def dual_steps(
    z_ptr, x_ptr, noise_ptr, M_ptr, delta_ptr, S_ptr, N, lr, h, batch, apart, H: tl.constexpr, TAU: tl.constexpr,
    EXACT: tl.constexpr, real: tl.constexpr, PRECISION: tl.constexpr, BM: tl.constexpr, BH: tl.constexpr,
):  # fmt: skip
    """N steps on the logits themselves, l' = l - lr M delta with M = V V^T + 1; S is the sum of the deltas."""
    for n in range(N):
        here = z_ptr + n * apart
        for begin in range(0, batch, BM):
            row = begin + tl.arange(0, BM)
            z = tile(here, row, h, batch, H).to(real)
            noise = z
            if not EXACT:
                noise = tile(noise_ptr + n * apart, row, h, batch, H).to(real)
            _, _, _, delta, _ = coefficients(z, tile(x_ptr, row, h, batch, H).to(real), noise, TAU, EXACT)
            delta = delta / tl.cast(batch, real)
            put(delta_ptr, delta, row, h, batch, H)
            if n == 0:
                put(S_ptr, delta, row, h, batch, H)
            else:
                put(S_ptr, delta + tile(S_ptr, row, h, batch, H).to(real), row, h, batch, H)
        tl.debug_barrier()
        for begin in range(0, batch, BM):
            row = begin + tl.arange(0, BM)
            moved = across(M_ptr, delta_ptr, row, h, batch, H, real, PRECISION, BM, BH)
            put(here + apart, tile(here, row, h, batch, H).to(real) - lr * moved, row, h, batch, H)
        tl.debug_barrier()


@triton.jit
def lower_kernel(
    v_ptr, eps_ptr, noise_ptr, W_ptr, b_ptr, c_ptr, log_sigma_ptr, A_ptr, a_ptr, mA_ptr, ma_ptr, vA_ptr, va_ptr,
    count_ptr, phi_rate_ptr, unroll_rate_ptr, A1_ptr, a1_ptr, mA1_ptr, ma1_ptr, vA1_ptr, va1_ptr, AN_ptr, aN_ptr,
    x_ptr, z_ptr, delta_ptr, G_ptr, m_ptr, v2_ptr, bias_ptr, M_ptr, S_ptr, lower_ptr, batch, K, N,
    D: tl.constexpr, H: tl.constexpr, SIGMA: tl.constexpr, TAU: tl.constexpr, EXACT: tl.constexpr, SGD: tl.constexpr,
    SHARED: tl.constexpr, UPPER: tl.constexpr, UNROLLED: tl.constexpr, DUAL: tl.constexpr,
    B1: tl.constexpr, B2: tl.constexpr, EPS: tl.constexpr, EPS_ROOT: tl.constexpr, WIDE: tl.constexpr,
    PRECISION: tl.constexpr, BM: tl.constexpr, BD: tl.constexpr, BH: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """Program (block of latent units, replica); the last one sums the lower loss's visible part."""
    real: tl.constexpr = tl.float64 if WIDE else tl.float32
    BLOCKS: tl.constexpr = (H + BH - 1) // BH
    replica, replicas = tl.program_id(1).to(tl.int64), tl.num_programs(1).to(tl.int64)
    visibles, latents, weights = batch * D, batch * H, D * H
    v_ptr += replica * visibles
    eps_ptr += replica * visibles  # of step s: s * replicas * visibles further
    noise_ptr += replica * latents
    lower_ptr += replica * (BLOCKS + 1)
    if tl.program_id(0) == BLOCKS:
        last_ptr = eps_ptr
        if not SHARED:
            last_ptr = eps_ptr + tl.maximum(K - 1, 0) * replicas * visibles
        total = tl.zeros([BM], dtype=real)
        for begin in range(0, batch, BM):
            row = begin + tl.arange(0, BM)
            for inner in range(0, D, BK):
                d = inner + tl.arange(0, BK)
                keep = (row < batch)[:, None] & (d < D)[None, :]
                V = visible(v_ptr, last_ptr, row, d, batch, D, SIGMA, real).to(real)
                z = tl.where(keep, V - vector(b_ptr + replica * D, d, D, real)[None, :], 0.0)
                total += tl.sum(
                    0.5 * z * z * tl.exp(-2.0 * vector(log_sigma_ptr + replica * D, d, D, real))[None, :], 1
                )
        tl.store(lower_ptr + BLOCKS, tl.where(K > 0, tl.sum(total, 0) / tl.cast(batch, real), 0.0))
    else:
        h = tl.program_id(0) * BH + tl.arange(0, BH)
        W_ptr += replica * weights
        A1_ptr += replica * weights
        mA1_ptr += replica * weights
        vA1_ptr += replica * weights
        AN_ptr += replica * weights
        delta_ptr += replica * latents
        x_ptr += replica * latents
        z_ptr += replica * latents
        own = replica * H + h
        copied(A_ptr + replica * weights, A1_ptr, h, D, H, BD)
        copied(mA_ptr + replica * weights, mA1_ptr, h, D, H, BD)
        copied(vA_ptr + replica * weights, vA1_ptr, h, D, H, BD)
        inside = h < H
        a = tl.load(a_ptr + own, mask=inside, other=0.0).to(real)
        ma = tl.load(ma_ptr + own, mask=inside, other=0.0).to(real)
        va = tl.load(va_ptr + own, mask=inside, other=0.0).to(real)
        c = tl.load(c_ptr + own, mask=inside, other=0.0).to(real)
        done = tl.load(count_ptr + replica).to(real)
        lr, rate = tl.load(phi_rate_ptr + replica).to(real), tl.load(unroll_rate_ptr + replica).to(real)

        sets = K + N
        if SHARED:
            sets = tl.minimum(sets, 1)
        for s in range(sets):
            for begin in range(0, batch, BM):
                row = begin + tl.arange(0, BM)
                here = eps_ptr + s * replicas * visibles
                x = latent(v_ptr, here, W_ptr, row, h, batch, D, H, SIGMA, real, PRECISION, BM, BH, BK) + c[None, :]
                put(x_ptr + s * replicas * latents, x, row, h, batch, H)
        tl.debug_barrier()

        kl = 0.0 * done
        for k in range(K):
            e, y = eps_ptr, x_ptr
            if not SHARED:
                e, y = eps_ptr + k * replicas * visibles, x_ptr + k * replicas * latents
            a, ma, va, _, kl = one_step(
                A1_ptr, mA1_ptr, vA1_ptr, mA1_ptr, vA1_ptr, G_ptr, z_ptr, y, noise_ptr + k * replicas * latents,
                delta_ptr, v_ptr, e, a, ma, va, done + (k + 1), lr, h, batch, D, H, SIGMA, TAU, EXACT, False, False,
                B1, B2, EPS, EPS_ROOT, real, PRECISION, BM, BD, BH, BK,
            )  # fmt: skip
        tl.store(lower_ptr + tl.program_id(0), kl / tl.cast(batch, real))
        tl.store(a1_ptr + own, a, mask=inside)
        tl.store(ma1_ptr + own, ma, mask=inside)
        tl.store(va1_ptr + own, va, mask=inside)

        if DUAL:
            S_ptr += replica * latents
            for begin in range(0, batch, BM):
                row = begin + tl.arange(0, BM)
                z = against(v_ptr, eps_ptr, A1_ptr, row, h, batch, D, H, SIGMA, real, PRECISION, BM, BH, BK)
                put(z_ptr, z + a[None, :], row, h, batch, H)
            tl.debug_barrier()
            noises = noise_ptr
            if not EXACT:
                noises = noise_ptr + K * replicas * latents
            dual_steps(
                z_ptr, x_ptr, noises, M_ptr + replica * batch * batch, delta_ptr, S_ptr, N, rate, h, batch,
                replicas * latents, H, TAU, EXACT, real, PRECISION, BM, BH,
            )  # fmt: skip
            for begin in range(0, D, BD):
                d = begin + tl.arange(0, BD)
                G = summed(S_ptr, v_ptr, eps_ptr, h, d, batch, D, H, SIGMA, real, PRECISION, BM, BH, BD)
                put(AN_ptr, tile(A1_ptr, h, d, H, D).to(real) - rate * G, h, d, H, D)
        elif UNROLLED:
            m_ptr += replica * weights
            v2_ptr += replica * weights
            G_ptr += replica * weights
            copied(A1_ptr, AN_ptr, h, D, H, BD)
            if not SGD:
                copied(mA1_ptr, m_ptr, h, D, H, BD)
                copied(vA1_ptr, v2_ptr, h, D, H, BD)
            tl.debug_barrier()
            for n in range(N):
                e, y = eps_ptr, x_ptr
                if not SHARED:
                    e, y = eps_ptr + (K + n) * replicas * visibles, x_ptr + (K + n) * replicas * latents
                at, then = n * replicas * weights, (n + 1) * replicas * weights
                tape = bias_ptr + (n * replicas + replica) * 3 * H + h
                tl.store(tape + H, ma, mask=inside)
                tl.store(tape + 2 * H, va, mask=inside)
                a, ma, va, a_grad, _ = one_step(
                    AN_ptr, m_ptr + at, v2_ptr + at, m_ptr + then, v2_ptr + then, G_ptr + at,
                    z_ptr + n * replicas * latents, y, noise_ptr + (K + n) * replicas * latents, delta_ptr, v_ptr, e,
                    a, ma, va, done + (K + n + 1), rate, h, batch, D, H, SIGMA, TAU, EXACT, SGD, True,
                    B1, B2, EPS, EPS_ROOT, real, PRECISION, BM, BD, BH, BK,
                )  # fmt: skip
                tl.store(tape, a_grad, mask=inside)
            tl.store(aN_ptr + own, a, mask=inside)
        if UPPER and not DUAL:
            e = eps_ptr
            if not SHARED:
                e = eps_ptr + (K + N) * replicas * visibles
            for begin in range(0, batch, BM):
                row = begin + tl.arange(0, BM)
                z = against(v_ptr, e, AN_ptr, row, h, batch, D, H, SIGMA, real, PRECISION, BM, BH, BK)
                put(z_ptr + N * replicas * latents, z + a[None, :], row, h, batch, H)
