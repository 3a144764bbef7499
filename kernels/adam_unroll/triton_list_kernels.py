"""The Triton kernels of Adam on a list of tensors; `triton_lists.py` launches them."""

# The kernels are in a language of their own, which has no types.
# mypy: disable-error-code="no-untyped-def,untyped-decorator"

import triton
import triton.language as tl

from eblvm.kernels.adam_unroll.triton import moments
from eblvm.kernels.runtime.selection import number, pointer


@triton.jit
def correction(t, LOG_B: tl.constexpr, WIDE: tl.constexpr):
    """1 - b^t; of float32 the power is rounded first, as a float32 power is."""
    power = tl.exp(t.to(tl.float64) * LOG_B)
    if WIDE:
        return 1.0 - power
    else:
        return 1.0 - power.to(tl.float32)


@triton.jit
def loaded(ptr, at, keep, MASKED: tl.constexpr, WIDE: tl.constexpr):
    real = tl.float64 if WIDE else tl.float32
    if MASKED:
        return tl.load(ptr + at, mask=keep, other=0.0).to(real)
    else:
        return tl.load(ptr + at).to(real)


@triton.jit
def stored(ptr, at, x, keep, MASKED: tl.constexpr):
    if MASKED:
        tl.store(ptr + at, x, mask=keep)
    else:
        tl.store(ptr + at, x)


@triton.jit
def step_tile(
    p_ptr, g_ptr, m_ptr, v_ptr, e_ptr, p_to, m_to, v_to, at, to, keep, rate, c2, scale,
    B1: tl.constexpr, B2: tl.constexpr, EPS: tl.constexpr, EPS_ROOT: tl.constexpr, DECAY: tl.constexpr,
    EMA: tl.constexpr, MASKED: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    p = loaded(p_ptr, at, keep, MASKED, WIDE)
    g = loaded(g_ptr, at, keep, MASKED, WIDE) * scale
    if DECAY != 0.0:
        g = g + DECAY * p
    m, v = moments(g, loaded(m_ptr, at, keep, MASKED, WIDE), loaded(v_ptr, at, keep, MASKED, WIDE), B1, B2)
    p = p - rate * m / (tl.sqrt(v / c2 + EPS_ROOT) + EPS)
    stored(p_to, to, p, keep, MASKED)
    stored(m_to, to, m, keep, MASKED)
    stored(v_to, to, v, keep, MASKED)
    if EMA != 0.0:
        e = loaded(e_ptr, at, keep, MASKED, WIDE)
        e = p + EMA * (e - p) if EMA < 0.5 else e - (e - p) * (1.0 - EMA)  # as torch.lerp
        stored(e_ptr, at, e, keep, MASKED)


@triton.jit
def steps_kernel(
    p_ptrs, g_ptrs, m_ptrs, v_ptrs, e_ptrs, t_ptr, lr_ptr, scale_ptr, go_ptr, out_ptr, t_to, room,
    FIRST: tl.constexpr, SIZES: tl.constexpr, STARTS: tl.constexpr, COUNT: tl.constexpr,
    LOG_B1: tl.constexpr, LOG_B2: tl.constexpr, B1: tl.constexpr, B2: tl.constexpr, EPS: tl.constexpr,
    EPS_ROOT: tl.constexpr, DECAY: tl.constexpr, EMA: tl.constexpr, CLIPS: tl.constexpr, IN_PLACE: tl.constexpr,
    GATED: tl.constexpr, COUNTS: tl.constexpr, WIDE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Of every tensor (p', m', v'): in their place, or in three rows of `room` elements at `out_ptr`.

    GATED: where the number at `go_ptr` is zero nothing moves."""
    tile, replica = tl.program_id(0), tl.program_id(1).to(tl.int64)
    real = tl.float64 if WIDE else tl.float32
    t = tl.load(t_ptr + replica).to(real) + 1.0
    if GATED:  # noqa: SIM102  a constant, and so apart from what is loaded
        if tl.load(go_ptr) == 0:
            if COUNTS and tile == 0:
                tl.store(t_to + replica, t - 1.0)
            return
    if COUNTS and tile == 0:
        tl.store(t_to + replica, t)
    rate = tl.load(lr_ptr + replica).to(real) / correction(t, LOG_B1, WIDE)
    c2 = correction(t, LOG_B2, WIDE)
    scale = tl.load(scale_ptr + replica).to(real) if CLIPS else 1.0
    p_ptr, g_ptr = pointer(tile, p_ptrs, FIRST, COUNT), pointer(tile, g_ptrs, FIRST, COUNT)
    m_ptr, v_ptr = pointer(tile, m_ptrs, FIRST, COUNT), pointer(tile, v_ptrs, FIRST, COUNT)
    e_ptr = pointer(tile, e_ptrs, FIRST, COUNT) if EMA != 0.0 else p_ptr
    size = number(tile, SIZES, FIRST, COUNT)
    begin = (tile - number(tile, FIRST, FIRST, COUNT)) * BLOCK
    i = begin + tl.arange(0, BLOCK)
    at = replica * size + i
    if IN_PLACE:
        p_to, m_to, v_to, to = p_ptr, m_ptr, v_ptr, at
    else:
        to = number(tile, STARTS, FIRST, COUNT).to(tl.int64) + at
        p_to, m_to, v_to = out_ptr, out_ptr + room, out_ptr + 2 * room
    keep = i < size
    if begin + BLOCK <= size:  # vectors of elements, without a mask
        step_tile(
            p_ptr, g_ptr, m_ptr, v_ptr, e_ptr, p_to, m_to, v_to, at, to, keep, rate, c2, scale,
            B1, B2, EPS, EPS_ROOT, DECAY, EMA, False, WIDE,
        )  # fmt: skip
    else:
        step_tile(
            p_ptr, g_ptr, m_ptr, v_ptr, e_ptr, p_to, m_to, v_to, at, to, keep, rate, c2, scale,
            B1, B2, EPS, EPS_ROOT, DECAY, EMA, True, WIDE,
        )  # fmt: skip


@triton.jit
def reverses_kernel(
    p_bar_ptrs, m_bar_ptrs, v_bar_ptrs, g_ptrs, m_ptrs, v_ptrs, t_ptr, lr_ptr, out_ptr, room,
    FIRST: tl.constexpr, SIZES: tl.constexpr, STARTS: tl.constexpr, COUNT: tl.constexpr,
    LOG_B1: tl.constexpr, LOG_B2: tl.constexpr, B1: tl.constexpr, B2: tl.constexpr, EPS: tl.constexpr,
    EPS_ROOT: tl.constexpr, MOMENTS: tl.constexpr, WIDE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The cotangents of every (g, m, v), in three rows of `room` elements. Without MOMENTS those of m' and v' are 0."""
    tile, replica = tl.program_id(0), tl.program_id(1).to(tl.int64)
    real = tl.float64 if WIDE else tl.float32
    t = tl.load(t_ptr + replica).to(real) + 1.0
    rate = tl.load(lr_ptr + replica).to(real) / correction(t, LOG_B1, WIDE)
    c2 = correction(t, LOG_B2, WIDE)
    size = number(tile, SIZES, FIRST, COUNT)
    i = (tile - number(tile, FIRST, FIRST, COUNT)) * BLOCK + tl.arange(0, BLOCK)
    keep = i < size
    at = replica * size + i
    to = number(tile, STARTS, FIRST, COUNT).to(tl.int64) + at
    g = loaded(pointer(tile, g_ptrs, FIRST, COUNT), at, keep, True, WIDE)
    m = loaded(pointer(tile, m_ptrs, FIRST, COUNT), at, keep, True, WIDE)
    v = tl.load(pointer(tile, v_ptrs, FIRST, COUNT) + at, mask=keep, other=1.0).to(real)
    m, v = moments(g, m, v, B1, B2)
    root = tl.sqrt(v / c2 + EPS_ROOT)
    pull = rate * loaded(pointer(tile, p_bar_ptrs, FIRST, COUNT), at, keep, True, WIDE) / (root + EPS)
    m_bar = -pull
    v_bar = pull * m / (root + EPS) / (2.0 * c2 * root)
    if MOMENTS:
        m_bar += loaded(pointer(tile, m_bar_ptrs, FIRST, COUNT), at, keep, True, WIDE)
        v_bar += loaded(pointer(tile, v_bar_ptrs, FIRST, COUNT), at, keep, True, WIDE)
    tl.store(out_ptr + to, (1 - B1) * m_bar + 2.0 * (1 - B2) * g * v_bar, mask=keep)
    tl.store(out_ptr + room + to, B1 * m_bar, mask=keep)
    tl.store(out_ptr + 2 * room + to, B2 * v_bar, mask=keep)


@triton.jit
def squares_kernel(
    x_ptrs, out_ptr, tiles, before, FIRST: tl.constexpr, SIZES: tl.constexpr, COUNT: tl.constexpr, WIDE: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """The sum of squares of every tile, [replicas, tiles]; these are the tiles from number `before` on."""
    tile, replica = tl.program_id(0), tl.program_id(1).to(tl.int64)
    size = number(tile, SIZES, FIRST, COUNT)
    i = (tile - number(tile, FIRST, FIRST, COUNT)) * BLOCK + tl.arange(0, BLOCK)
    x = loaded(pointer(tile, x_ptrs, FIRST, COUNT), replica * size + i, i < size, True, WIDE)
    tl.store(out_ptr + replica * tiles + before + tile, tl.sum(x * x, 0))


@triton.jit
def norm_kernel(squares_ptr, norm_to, scale_to, tiles, CLIP: tl.constexpr, WIDE: tl.constexpr, BLOCK: tl.constexpr):
    """The norm from the tiles' sums, in a fixed order, and the factor that scales it down to CLIP."""
    replica = tl.program_id(0).to(tl.int64)
    total = tl.zeros((BLOCK,), tl.float64 if WIDE else tl.float32)
    for begin in range(0, tiles, BLOCK):
        i = begin + tl.arange(0, BLOCK)
        total += tl.load(squares_ptr + replica * tiles + i, mask=i < tiles, other=0.0)
    norm = tl.sqrt(tl.sum(total, 0))
    tl.store(norm_to + replica, norm)
    if CLIP != 0.0:
        # A NaN passes through, as it does through clamp.
        tl.store(scale_to + replica, CLIP / tl.where(norm < CLIP, CLIP, norm))


@triton.jit
def finite_kernel(x_ptrs, bad_to, FIRST: tl.constexpr, SIZES: tl.constexpr, COUNT: tl.constexpr, BLOCK: tl.constexpr):
    """1 to `bad_to`, which is 0, if an element is infinite or NaN. All programs that see one write the same."""
    tile = tl.program_id(0)
    size = number(tile, SIZES, FIRST, COUNT)
    i = (tile - number(tile, FIRST, FIRST, COUNT)) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(pointer(tile, x_ptrs, FIRST, COUNT) + i, mask=i < size, other=0.0)
    broken = (x != x) | (tl.abs(x) == float("inf"))
    if tl.sum(broken.to(tl.int32), 0) > 0:
        tl.store(bad_to, 1)


@triton.jit
def restore_kernel(
    x_ptrs, from_ptrs, go_ptr, FIRST: tl.constexpr, SIZES: tl.constexpr, COUNT: tl.constexpr, BLOCK: tl.constexpr
):
    """x becomes what it was before if the number at `go_ptr` is zero."""
    tile = tl.program_id(0)
    if tl.load(go_ptr) == 0:
        size = number(tile, SIZES, FIRST, COUNT)
        i = (tile - number(tile, FIRST, FIRST, COUNT)) * BLOCK + tl.arange(0, BLOCK)
        x = tl.load(pointer(tile, from_ptrs, FIRST, COUNT) + i, mask=i < size, other=0.0)
        tl.store(pointer(tile, x_ptrs, FIRST, COUNT) + i, x, mask=i < size)
