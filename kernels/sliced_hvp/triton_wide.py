"""The terms of sliced score matching on a GRBM in Triton, and their first order: torch's products, a kernel after each.

Row and column kernels as in `kernels/grbm/triton.py`.
"""

# The kernels are in a language of their own, which has no types.
# mypy: disable-error-code="no-untyped-def,untyped-decorator"

import torch
import triton
import triton.language as tl
from torch import Tensor

from eblvm.kernels.grbm.triton_wide import (
    FREE,
    SQUARE,
    latent_kernel,
    launch_columns,
    launch_rows,
    score_kernel,
    sum_of_products,
    variants_of,
    visible_first_kernel,
)
from eblvm.kernels.runtime.triton_report import Variant


@triton.jit(do_not_specialize=["batch"])
def curvature_kernel(
    slices_ptr, mean_ptr, u_ptr, log_sigma_ptr, row_ptr, batch, width,
    M: tl.constexpr, D: tl.constexpr, WIDE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """u^T H u of one direction at one sample: sum_H sigmoid' (u W)^2 - sum_D u^2 / sigma^2."""
    real = tl.float64 if WIDE else tl.float32
    row = tl.program_id(0).to(tl.int64)
    replica = row // (M * batch)
    sample = replica * batch + row % batch
    total = tl.zeros([BLOCK], dtype=real)
    for begin in range(0, width, BLOCK):
        column = begin + tl.arange(0, BLOCK)
        keep = column < width
        q = tl.load(slices_ptr + row * width + column, mask=keep, other=0.0).to(real)
        mean = tl.load(mean_ptr + sample * width + column, mask=keep, other=0.0).to(real)
        total += mean * (1.0 - mean) * (q * q)
    for begin in range(0, D, BLOCK):
        column = begin + tl.arange(0, BLOCK)
        keep = column < D
        u = tl.load(u_ptr + row * D + column, mask=keep, other=0.0).to(real)
        log_sigma = tl.load(log_sigma_ptr + replica * D + column, mask=keep, other=0.0).to(real)
        total -= tl.exp(-2.0 * log_sigma) * (u * u)
    tl.store(row_ptr + row, tl.sum(total, 0))


@triton.jit(do_not_specialize=["batch"])
def slices_first_kernel(
    t_ptr, mean_ptr, slices_ptr, k_ptr, c_bar_ptr, batch, width,
    M: tl.constexpr, WIDE: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr,
):  # fmt: skip
    """t = r W becomes the cotangent of c + v W, whose column sums are c's; the slices q become 2 k sigmoid' q."""
    real = tl.float64 if WIDE else tl.float32
    replica = tl.program_id(1).to(tl.int64)
    column = tl.program_id(0) * COLS + tl.arange(0, COLS)
    total = tl.zeros([COLS], dtype=real)
    for begin in range(0, batch, ROWS):
        row = begin + tl.arange(0, ROWS)
        keep = (row < batch)[:, None] & (column < width)[None, :]
        at = (replica * batch + row)[:, None] * width + column[None, :]
        mean = tl.load(mean_ptr + at, mask=keep, other=0.0).to(real)
        slope = mean * (1.0 - mean)
        squares = tl.zeros([ROWS, COLS], dtype=real)
        for m in range(M):
            slice_row = (replica * M + m) * batch + row
            here = slice_row[:, None] * width + column[None, :]
            k = tl.load(k_ptr + slice_row, mask=row < batch, other=0.0).to(real)[:, None]
            q = tl.load(slices_ptr + here, mask=keep, other=0.0).to(real)
            squares += k * q * q
            tl.store(slices_ptr + here, 2.0 * k * slope * q, mask=keep)
        t = tl.load(t_ptr + at, mask=keep, other=0.0).to(real)
        x_bar = slope * (t + (1.0 - 2.0 * mean) * squares)
        tl.store(t_ptr + at, x_bar, mask=keep)
        total += tl.sum(x_bar, 0)
    tl.store(c_bar_ptr + replica * width + column, total, mask=column < width)


@triton.jit(do_not_specialize=["batch"])
def direction_first_kernel(
    k_ptr, u_ptr, log_sigma_ptr, u_bar_ptr, log_sigma_bar_ptr, batch, width,
    WIDE: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr,
):  # fmt: skip
    """The explicit part of u's cotangent, -2 k u / sigma^2, and its part of log_sigma's; M B rows per replica."""
    real = tl.float64 if WIDE else tl.float32
    replica = tl.program_id(1).to(tl.int64)
    column = tl.program_id(0) * COLS + tl.arange(0, COLS)
    inside = column < width
    own = replica * width + column
    precision = tl.exp(-2.0 * tl.load(log_sigma_ptr + own, mask=inside, other=0.0).to(real))[None, :]
    total = tl.load(log_sigma_bar_ptr + own, mask=inside, other=0.0).to(real)
    for begin in range(0, batch, ROWS):
        row = begin + tl.arange(0, ROWS)
        keep = (row < batch)[:, None] & inside[None, :]
        at = (replica * batch + row)[:, None] * width + column[None, :]
        k = tl.load(k_ptr + replica * batch + row, mask=row < batch, other=0.0).to(real)[:, None]
        u = tl.load(u_ptr + at, mask=keep, other=0.0).to(real)
        u_bar = -2.0 * k * precision * u
        tl.store(u_bar_ptr + at, u_bar, mask=keep)
        total -= tl.sum(u_bar * u, 0)
    tl.store(log_sigma_bar_ptr + own, total, mask=inside)


def value(v: Tensor, u: Tensor, W: Tensor, b: Tensor, c: Tensor, log_sigma: Tensor) -> tuple[Tensor, ...]:
    """`reference.value`."""
    v, u, b, c, log_sigma = (t.contiguous() for t in (v, u, b, c, log_sigma))
    M, batch, (D, H) = u.shape[-3], v.shape[-2], W.shape[-2:]
    mean, half_square = v @ W, torch.empty(v.shape[:-1], dtype=v.dtype, device=v.device)
    launch_rows(latent_kernel, (mean, c, half_square), batch, H, KIND=FREE.value)
    score = mean @ W.mT
    launch_rows(score_kernel, (score, v, b, log_sigma, half_square), batch, D, KIND=SQUARE.value)
    slices = (u.flatten(-3, -2) @ W).unflatten(-2, (M, batch))
    curvature = torch.empty(u.shape[:-1], dtype=v.dtype, device=v.device)
    launch_rows(curvature_kernel, (slices, mean, u, log_sigma, curvature), batch, H, M=M, D=D)
    return half_square, curvature, mean, score, slices


def first(
    f: Tensor,
    k: Tensor,
    mean: Tensor,
    score: Tensor,
    slices: Tensor,
    v: Tensor,
    u: Tensor,
    W: Tensor,
    b: Tensor,
    c: Tensor,
    log_sigma: Tensor,
    wants_v: bool,
    wants_u: bool,
) -> tuple[Tensor, ...]:
    """`reference.first`."""
    k, mean, v, u, b, log_sigma = (t.contiguous() for t in (k, mean, v, u, b, log_sigma))
    replicas, M, batch, (D, H) = W.shape[:-2].numel(), u.shape[-3], v.shape[-2], W.shape[-2:]
    r = (f.unsqueeze(-1) * score).contiguous()
    b_bar, log_sigma_bar, v_bar, u_bar = (torch.empty_like(t) for t in (b, log_sigma, v, u))
    visible = (torch.zeros_like(v[..., 0]), r, r, v, b, log_sigma, b_bar, log_sigma_bar, v_bar, v_bar)
    launch_columns(visible_first_kernel, visible, replicas, batch, D, KIND=FREE.value)
    launch_columns(direction_first_kernel, (k, u, log_sigma, u_bar, log_sigma_bar), replicas, M * batch, D)
    x_bar, c_bar = r @ W, torch.empty(c.shape, dtype=c.dtype, device=c.device)
    slices_bar = slices.clone(memory_format=torch.contiguous_format)
    launch_columns(slices_first_kernel, (x_bar, mean, slices_bar, k, c_bar), replicas, batch, H, M=M)
    flat, flat_bar = u.flatten(-3, -2), slices_bar.flatten(-3, -2)
    gradients = [sum_of_products((v, x_bar), (r, mean), (flat, flat_bar)), b_bar, c_bar, log_sigma_bar]
    if wants_v:
        gradients.append(v_bar + x_bar @ W.mT)
    if wants_u:
        gradients.append(u_bar + (flat_bar @ W.mT).view(u.shape))
    return tuple(gradients)


def variants() -> list[Variant]:
    rows = {
        "score square": (score_kernel, "score_ptr v_ptr b_ptr log_sigma_ptr row_ptr", {"KIND": SQUARE.value}),
        "curvature": (curvature_kernel, "slices_ptr mean_ptr u_ptr log_sigma_ptr row_ptr", {"M": 4, "D": 560}),
    }
    columns = {
        "slices first": (slices_first_kernel, "t_ptr mean_ptr slices_ptr k_ptr c_bar_ptr", {"M": 4}),
        "direction first": (
            direction_first_kernel, "k_ptr u_ptr log_sigma_ptr u_bar_ptr log_sigma_bar_ptr", {}
        ),
    }  # fmt: skip
    return variants_of("sliced_hvp", rows, False) + variants_of("sliced_hvp", columns, True)
