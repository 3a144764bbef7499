"""The denoising step on a GRBM in Triton: torch's products, and one kernel after each."""

# The kernels are in a language of their own, which has no types.
# mypy: disable-error-code="no-untyped-def,untyped-decorator"

import torch
import triton
import triton.language as tl
from torch import Tensor

from eblvm.kernels.grbm.triton_wide import (
    COLS,
    FREE,
    latent_first_kernel,
    latent_kernel,
    launch_columns,
    launch_rows,
    sum_of_products,
    variants_of,
)
from eblvm.kernels.runtime.triton_report import Variant


@triton.jit(do_not_specialize=["batch"])
def residual_kernel(
    r_ptr, v_ptr, eps_ptr, b_ptr, log_sigma_ptr, b_bar_ptr, log_sigma_bar_ptr, loss_ptr, batch, width,
    SIGMA: tl.constexpr,  # not an argument: a float argument would be float32
    WIDE: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr,
):  # fmt: skip
    """The score's latent part becomes r = (score + eps/sigma) / B; cotangents of b and log_sigma, the columns' loss."""
    real = tl.float64 if WIDE else tl.float32
    replica = tl.program_id(1).to(tl.int64)
    column = tl.program_id(0) * COLS + tl.arange(0, COLS)
    inside = column < width
    own = replica * width + column
    b = tl.load(b_ptr + own, mask=inside, other=0.0).to(real)[None, :]
    precision = tl.exp(-2.0 * tl.load(log_sigma_ptr + own, mask=inside, other=0.0).to(real))
    count = tl.cast(batch, real)
    r_sum, away_sum, squares = (
        tl.zeros([COLS], dtype=real),
        tl.zeros([COLS], dtype=real),
        tl.zeros([COLS], dtype=real),
    )
    for begin in range(0, batch, ROWS):
        row = begin + tl.arange(0, ROWS)
        keep = (row < batch)[:, None] & inside[None, :]
        at = (replica * batch + row)[:, None] * width + column[None, :]
        away = (tl.load(v_ptr + at, mask=keep, other=0.0).to(real) - b) * precision[None, :]
        score = tl.load(r_ptr + at, mask=keep, other=0.0).to(real) - away
        score += tl.load(eps_ptr + at, mask=keep, other=0.0).to(real) / SIGMA
        r = tl.where(keep, score, 0.0) / count
        tl.store(r_ptr + at, r, mask=keep)
        r_sum += tl.sum(r, 0)
        away_sum += tl.sum(r * away, 0)
        squares += tl.sum(r * r, 0)
    tl.store(b_bar_ptr + own, r_sum * precision, mask=inside)
    tl.store(log_sigma_bar_ptr + own, 2.0 * away_sum, mask=inside)
    tl.store(loss_ptr + replica * tl.num_programs(0) + tl.program_id(0), 0.5 * count * tl.sum(squares, 0))


def grbm_dsm(
    v: Tensor, eps: Tensor, W: Tensor, b: Tensor, c: Tensor, log_sigma: Tensor, sigma: float
) -> tuple[Tensor, ...]:
    """`reference.grbm_dsm`."""
    eps, b, c, log_sigma = (t.contiguous() for t in (eps, b, c, log_sigma))
    v = torch.add(v, eps, alpha=sigma).contiguous()
    lead, batch, (D, H) = W.shape[:-2], v.shape[-2], W.shape[-2:]
    mean, unused = v @ W, torch.empty(v.shape[:-1], dtype=v.dtype, device=v.device)
    launch_rows(latent_kernel, (mean, c, unused), batch, H, KIND=FREE.value)
    r = mean @ W.mT
    b_bar, c_bar, log_sigma_bar = torch.empty_like(b), torch.empty_like(c), torch.empty_like(log_sigma)
    losses = torch.empty((*lead, triton.cdiv(D, COLS)), dtype=v.dtype, device=v.device)
    tensors = (r, v, eps, b, log_sigma, b_bar, log_sigma_bar, losses)
    launch_columns(residual_kernel, tensors, lead.numel(), batch, D, SIGMA=sigma)
    x_bar = r @ W
    launch_columns(latent_first_kernel, (x_bar, mean, torch.zeros_like(unused), c_bar), lead.numel(), batch, H)
    return losses.sum(-1), sum_of_products((v, x_bar), (r, mean)), b_bar, c_bar, log_sigma_bar


def variants() -> list[Variant]:
    pointers = "r_ptr v_ptr eps_ptr b_ptr log_sigma_ptr b_bar_ptr log_sigma_bar_ptr loss_ptr"
    return variants_of("grbm_dsm", {"residual": (residual_kernel, pointers, {"SIGMA": 0.3})}, True)
