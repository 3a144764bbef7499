"""The terms of sliced score matching on a GRBM in Triton, and their first order: one launch each, for all directions.

Both are kernels of `kernels/grbm`: u W of a direction is computed while a block of W is in registers, and again for
the gradients. Where D does not fit into registers, and for gradients of v and u, `triton_wide.py` is used.
"""

import torch
from torch import Tensor

from eblvm.kernels.grbm.triton import fits, fused_variants, launch_columns, launch_rows
from eblvm.kernels.grbm.triton_rows import SLICED
from eblvm.kernels.runtime.triton_report import Variant
from eblvm.kernels.sliced_hvp import triton_wide

MOST_DIRECTIONS = 16  # whose sums a row kernel has registers for


def fused(u: Tensor, W: Tensor) -> bool:
    return fits(u, W, M=u.shape[-3]) and u.shape[-3] <= MOST_DIRECTIONS


def value(v: Tensor, u: Tensor, W: Tensor, b: Tensor, c: Tensor, log_sigma: Tensor) -> tuple[Tensor, ...]:
    """`reference.value`, with empty tensors in the place of the mean and of u W, which `first` computes again."""
    if not fused(u, W):
        return triton_wide.value(v, u, W, b, c, log_sigma)
    half_square, curvature, score = launch_rows(SLICED.value, v, W, b, c, log_sigma, u=u)
    mean, slices = (torch.empty((*W.shape[:-2], 0), dtype=v.dtype, device=v.device) for _ in range(2))
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
    arguments = (v, u, W, b, c, log_sigma)
    if fused(u, W) and not (wants_v or wants_u):
        gradients = launch_columns(SLICED.value, v, W, b, c, log_sigma, g=f, r=score, u=u, k=k)
        return tuple(gradients[name] for name in ("W_bar", "b_bar", "c_bar", "log_sigma_bar"))
    if fused(u, W):
        _, _, mean, score, slices = triton_wide.value(*arguments)
    return triton_wide.first(f, k, mean, score, slices, *arguments, wants_v, wants_u)


def variants() -> list[Variant]:
    fused = fused_variants("sliced_hvp", {"value": SLICED.value}, {"first": SLICED.value}, M=4)
    return [*fused, *triton_wide.variants()]
