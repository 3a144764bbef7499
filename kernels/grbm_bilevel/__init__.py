"""One bi-level denoising step on a GRBM with a linear Bernoulli posterior in closed form, without an autograd graph.

theta's gradient of mean_B 1/2 |s(v~) + eps/sigma|^2 through N unrolled lower steps, and phi after K real ones. With a
batch that all steps share and unrolled SGD, the unroll is of the logits (the dual). README.md derives it all.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils.flop_counter import register_flop_formula

from eblvm.kernels.adam_unroll import Rule
from eblvm.kernels.grbm_bilevel import reference
from eblvm.kernels.grbm_bilevel.reference import Phi, Result, Settings, Theta
from eblvm.kernels.runtime.arguments import expect_dtype_and_device
from eblvm.kernels.runtime.dispatch import TRITON, Backend, native_status, op_backends, triton_module

__all__ = [
    "Phi",
    "Result",
    "Rule",
    "Settings",
    "Theta",
    "backends",
    "flops",
    "grbm_bilevel",
    "lower_steps",
    "memory",
    "native",
    "serves",
]

_NATIVE, _ = native_status("grbm_bilevel")


def _native(
    v: Tensor,
    perturb: Sequence[Tensor],
    latent: Sequence[Tensor],
    theta: Theta,
    phi: Phi,
    phi_rate: Tensor,
    unroll_rate: Tensor,
    settings: Settings,
    *,
    upper: bool,
) -> list[Tensor]:
    K, sigma, tau, exact, rule, N, sgd, auto_rate = settings
    flat = (K, N, sigma, tau, exact, sgd, auto_rate, *rule, upper)
    return torch.ops.eblvm.grbm_bilevel(v, list(perturb), list(latent), *theta, *phi, phi_rate, unroll_rate, *flat)


def _launches(v: Tensor) -> bool:
    """Do the Triton kernels run for v? They cannot be launched on the wrapped tensors of a torch.func transform."""
    if not TRITON or v.device.type != "cuda" or v.numel() == 0:
        return False
    return torch._C._functorch.maybe_current_level() is None and v.shape[-2] * max(v.shape[-1], 1) < 2**31


def _backend(v: Tensor) -> Any:
    return triton_module("grbm_bilevel", v.device) if _launches(v) else reference


def _check(
    v: Tensor,
    perturb: Sequence[Tensor],
    latent: Sequence[Tensor],
    theta: Theta,
    phi: Phi,
    phi_rate: Tensor,
    unroll_rate: Tensor,
    settings: Settings,
    *,
    upper: bool,
) -> None:
    """The checks that the native step makes itself."""
    W = theta.W
    if W.dim() < 2 or v.dim() != W.dim():
        got = f"W of shape {tuple(W.shape)} and v of shape {tuple(v.shape)}"
        raise ValueError(f"grbm_bilevel got {got}; expected [..., D, H] and [..., B, D]")
    lead, (D, H), B = tuple(W.shape[:-2]), W.shape[-2:], v.shape[-2]
    if settings.K < 0 or settings.N < 0:
        raise ValueError(f"grbm_bilevel got K={settings.K}, N={settings.N}; expected both at least 0")
    steps = settings.K + settings.N + upper
    noises = int(upper) if settings.exact else steps
    if len(perturb) not in (1, steps):
        raise ValueError(f"grbm_bilevel got {len(perturb)} perturbations; expected 1 (shared) or one per step, {steps}")
    if len(latent) != noises:
        raise ValueError(f"grbm_bilevel got {len(latent)} latent noises; expected {noises}")
    own: dict[str, tuple[int, ...]] = {"W": (D, H), "b": (D,), "c": (H,), "log_sigma": (D,)}
    own |= dict.fromkeys(("A", "m_weight", "v_weight"), (H, D)) | dict.fromkeys(("a", "m_bias", "v_bias"), (H,))
    own |= dict.fromkeys(("step_count", "phi_rate", "unroll_rate"), ())
    batches = {"v": v} | {f"perturb[{i}]": t for i, t in enumerate(perturb)}
    own |= dict.fromkeys(batches, (B, D))
    hidden = {f"latent[{i}]": t for i, t in enumerate(latent)}
    own |= dict.fromkeys(hidden, (B, H))
    rates = {"phi_rate": phi_rate, "unroll_rate": unroll_rate}
    for name, t in (theta._asdict() | phi._asdict() | rates | batches | hidden).items():
        expected = (*lead, *own[name])
        if tuple(t.shape) != expected:
            raise ValueError(f"grbm_bilevel got {name} of shape {tuple(t.shape)}; expected {expected}")
        expect_dtype_and_device("grbm_bilevel", name, t, W)


def _op_flops(v: Tensor, perturb: Sequence[Tensor], latent: Any, W: Tensor, *rest: Any, **_: Any) -> int:
    B, D, H = v.shape[-2], *W.shape[-2:]
    K, N, _sigma, _tau, _exact, sgd = rest[12:18]
    one = flops(B, D, H, K=K, N=N, shared=len(perturb) == 1 and K + N > 0, sgd=sgd)
    if not rest[-1]:
        one -= 2 * B * D * H * 4  # the upper level's
    return one * (W.numel() // (D * H))


if _NATIVE:
    register_flop_formula(torch.ops.eblvm.grbm_bilevel, get_raw=True)(_op_flops)


def grbm_bilevel(
    v: Tensor,
    perturb: Sequence[Tensor],
    latent: Sequence[Tensor],
    theta: Theta,
    phi: Phi,
    phi_rate: Tensor,
    unroll_rate: Tensor,
    settings: Settings,
) -> Result:
    """The step at data v [..., B, D]; leading axes are replicas. No gradient flows through it.

    `perturb`: standard normal [..., B, D], one for all steps or K+N+1; `latent`: logistic noise [..., B, H], K+N+1, or
    the last one alone if `settings.exact`. `phi_rate` is the learning rate of the real steps, `unroll_rate` that of the
    unrolled ones; both have the leading axes.
    """
    arguments = (v, perturb, latent, theta, phi, phi_rate, unroll_rate, settings)
    if _NATIVE and v.device.type == "cpu":
        out = _native(*arguments, upper=True)
        return Result(Theta(*out[:4]), Phi(*out[4:11]), out[11], out[12])
    _check(*arguments, upper=True)
    return _backend(v).grbm_bilevel(*arguments)


def lower_steps(
    v: Tensor,
    perturb: Sequence[Tensor],
    latent: Sequence[Tensor],
    theta: Theta,
    phi: Phi,
    phi_rate: Tensor,
    settings: Settings,
) -> tuple[Phi, Tensor]:
    """The K real steps alone: phi after them, and the lower loss of the last, zero if K = 0.

    `perturb` has one tensor for all steps or K, `latent` K, or none if `settings.exact`. Of the settings, K, sigma,
    tau, exact and rule are read.
    """
    arguments, real = (v, perturb, latent, theta, phi, phi_rate), settings.real()
    if _NATIVE and v.device.type == "cpu":
        out = _native(*arguments, phi_rate, real, upper=False)
        return Phi(*out[4:11]), out[12]
    _check(*arguments, phi_rate, real, upper=False)
    return (_backend(v) if real.K else reference).lower_steps(*arguments, real)


def serves(device: torch.device, dtype: torch.dtype) -> bool:
    """Is there a step for such tensors?"""
    return device.type in ("cpu", "cuda") and dtype in (torch.float32, torch.float64)


def memory() -> tuple[int, int]:
    """Bytes of scratch memory in this thread's last native step, and of them those of the unroll's tape."""
    return torch.ops.eblvm.grbm_bilevel_memory()


def native() -> bool:
    return _NATIVE


def flops(B: int, D: int, H: int, *, K: int, N: int, shared: bool, sgd: bool) -> int:
    """Of the matrix products of one replica's step, as native.cpp computes them."""
    full, square = 2 * B * D * H, 2 * B * B
    count = 2 * K + 4 + (0 if K + N == 0 else 1 if shared else K + N)  # real steps, upper level, x
    if N == 0:
        return full * count
    count += 2 + (1 if shared else N)  # r W, r A^T; W from x
    if sgd and shared and B < 2 * D:  # the dual
        return full * count + square * (3 * D + (2 * N + 3) * H)
    return full * (count + 2 * N + 2 + 2 * N - 1)  # forward; A from the upper level; reverse


def backends() -> list[Backend]:
    """The backends of this op: which is used on which device, and why not the others."""
    return op_backends("grbm_bilevel")
