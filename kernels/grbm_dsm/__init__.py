"""One denoising score matching step on a GRBM in closed form: residual, loss and all gradients, no autograd graph.

loss = mean_B 1/2 |s(v + sigma eps) + eps/sigma|^2,   s(v) = (b-v)/sigma_D^2 + sigmoid(c+vW) W^T
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils.flop_counter import register_flop_formula

from eblvm.kernels.grbm_dsm import reference
from eblvm.kernels.runtime.arguments import expect_grbm
from eblvm.kernels.runtime.dispatch import TRITON, Backend, backend_for, native_status, op_backends

__all__ = ["Gradients", "backends", "grbm_dsm", "serves"]

_NATIVE, _ = native_status("grbm_dsm")


class Gradients(NamedTuple):
    """Of the loss, each shaped like the parameter."""

    W: Tensor
    b: Tensor
    c: Tensor
    log_sigma: Tensor


def _flops(v: Tensor, eps: Tensor, W: Tensor, *_rest: Any, **_: Any) -> int:
    return 2 * v.numel() * W.shape[-1] * 5


if _NATIVE:
    register_flop_formula(torch.ops.eblvm.grbm_dsm, get_raw=True)(_flops)


def grbm_dsm(
    v: Tensor, eps: Tensor, W: Tensor, b: Tensor, c: Tensor, log_sigma: Tensor, sigma: float
) -> tuple[Tensor, Gradients]:
    """(loss [...], its gradients) at data v [..., B, D], perturbed by sigma * eps; leading axes are replicas.

    W [..., D, H], b and log_sigma [..., D], c [..., H]. No gradient flows through it: where one is wanted, `grbm` and
    autograd give it.
    """
    expect_grbm("grbm_dsm", v, W, b, c, log_sigma, {"eps": (eps, ("B", "D"))})
    if v.shape[-2] == 0:
        raise ValueError("grbm_dsm got a batch of 0 samples; expected at least 1, its loss is a mean")
    if not sigma > 0:
        raise ValueError(f"grbm_dsm got sigma={sigma}; expected a positive noise level")
    if torch.is_grad_enabled():
        for name, t in {"v": v, "eps": eps, "W": W, "b": b, "c": c, "log_sigma": log_sigma}.items():
            if t.requires_grad:
                raise ValueError(
                    f"grbm_dsm got {name} that requires grad, and no gradient flows through it; "
                    "use torch.no_grad(), or `grbm` and autograd"
                )
    backend = backend_for("grbm_dsm", v, reference, torch.ops.eblvm if _NATIVE else None)
    # Kernels cannot be launched on the wrapped tensors of a torch.func transform; the reference can.
    if v.device.type == "cuda" and torch._C._functorch.maybe_current_level() is not None:
        backend = reference
    loss, *gradients = backend.grbm_dsm(v, eps, W, b, c, log_sigma, sigma)
    return loss, Gradients(*gradients)


def serves(device: torch.device, dtype: torch.dtype) -> bool:
    """Is there something faster than the reference for such tensors?"""
    if device.type == "cpu":
        return _NATIVE and dtype in (torch.float32, torch.float64)
    return TRITON and device.type == "cuda"


def backends() -> list[Backend]:
    """The backends of this op: which is used on which device, and why not the others."""
    return op_backends("grbm_dsm")
