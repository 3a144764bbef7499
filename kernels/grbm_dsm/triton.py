"""The denoising step on a GRBM in Triton, in two launches: residuals by samples, then all gradients by columns of W.

Both are kernels of `kernels/grbm`, with v + sigma eps made where it is read. Where D does not fit into registers,
`triton_wide.py` is used.
"""

from torch import Tensor

from eblvm.kernels.grbm.triton import fits, fused_variants, launch_columns, launch_rows
from eblvm.kernels.grbm.triton_rows import RESIDUAL
from eblvm.kernels.grbm_dsm import triton_wide
from eblvm.kernels.runtime.triton_report import Variant


def grbm_dsm(
    v: Tensor, eps: Tensor, W: Tensor, b: Tensor, c: Tensor, log_sigma: Tensor, sigma: float
) -> tuple[Tensor, ...]:
    """`reference.grbm_dsm`."""
    if not fits(v, W):
        return triton_wide.grbm_dsm(v, eps, W, b, c, log_sigma, sigma)
    losses, _, r = launch_rows(RESIDUAL.value, v, W, b, c, log_sigma, sigma=sigma, eps=eps)
    results = launch_columns(RESIDUAL.value, v, W, b, c, log_sigma, sigma=sigma, eps=eps, r=r, row=losses)
    return tuple(results[name] for name in ("loss", "W_bar", "b_bar", "c_bar", "log_sigma_bar"))


def variants() -> list[Variant]:
    fused = fused_variants("grbm_dsm", {"residual": RESIDUAL.value}, {"gradients": RESIDUAL.value}, sigma=0.3)
    return [*fused, *triton_wide.variants()]
