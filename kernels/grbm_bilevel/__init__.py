"""One bi-level denoising step on a GRBM with a linear Bernoulli posterior, by hand: no autograd graph.

theta's gradient of mean_B 1/2 |s(v~) + eps/sigma|^2 through N unrolled lower steps, and phi after K real ones. With a
batch that all steps share and unrolled SGD, the native unroll lives in the logits (the dual). README.md derives it all.
"""

from collections.abc import Sequence
from types import ModuleType
from typing import Any

import torch
from torch import Tensor
from torch.utils.flop_counter import register_flop_formula

from eblvm.kernels.adam_unroll import Rule
from eblvm.kernels.grbm_bilevel import reference
from eblvm.kernels.grbm_bilevel.reference import Phi, Result, Theta
from eblvm.kernels.runtime.dispatch import TRITON, Backend, native_status, op_backends

__all__ = ["Phi", "Result", "Theta", "backends", "grbm_bilevel", "lower_steps", "memory", "native", "serves"]

_NATIVE, _ = native_status("grbm_bilevel")


def serves(device: torch.device, dtype: torch.dtype) -> bool:
    return device.type in ("cpu", "cuda") and dtype in (torch.float32, torch.float64)


def grbm_bilevel(
    v: Tensor,
    perturb: Sequence[Tensor],
    latent: Sequence[Tensor],
    theta: Theta,
    phi: Phi,
    lr: Tensor,
    unroll_lr: Tensor,
    *,
    K: int,
    N: int,
    sigma: float,
    tau: float,
    exact: bool,
    sgd: bool,
    auto_rate: bool,
    rule: Rule,
) -> Result:
    """The step at data v [..., B, D]; leading axes are replicas. No gradient flows through it.

    `perturb`: standard normal [..., B, D], one for all steps or K+N+1; `latent`: logistic noise [..., B, H], K+N+1, or
    the last one alone if `exact` (the closed-form KL). Unrolled steps are Adam's or, with `sgd`, plain ones of size
    `unroll_lr`, or with `auto_rate` of 6 / lambda_max((v v^T + 1) / B). lr and unroll_lr have the leading axes.
    """
    if not (_NATIVE and v.device.type == "cpu"):
        _check(v, perturb, latent, theta, phi, lr, unroll_lr, K + N + 1, 1 if exact else K + N + 1)
        how: dict[str, Any] = {"K": K, "N": N, "sigma": sigma, "tau": tau, "exact": exact, "sgd": sgd}
        step = _triton().grbm_bilevel if _launches(v) else reference.grbm_bilevel
        return step(v, perturb, latent, theta, phi, lr, unroll_lr, **how, auto_rate=auto_rate, rule=rule)
    switches = (K, N, sigma, tau, exact, sgd, auto_rate, *rule, True)
    out = torch.ops.eblvm.grbm_bilevel(v, list(perturb), list(latent), *theta, *phi, lr, unroll_lr, *switches)
    return Result(Theta(*out[:4]), Phi(*out[4:11]), out[11], out[12])


def lower_steps(
    v: Tensor,
    perturb: Sequence[Tensor],
    latent: Sequence[Tensor],
    theta: Theta,
    phi: Phi,
    lr: Tensor,
    *,
    K: int,
    sigma: float,
    tau: float,
    exact: bool,
    rule: Rule,
) -> tuple[Phi, Tensor]:
    """The K real steps alone: phi after them, and the lower loss of the last. `perturb` holds one for all steps or K,
    `latent` K, or none if `exact`."""
    if not (_NATIVE and v.device.type == "cpu"):
        _check(v, perturb, latent, theta, phi, lr, lr, K, 0 if exact else K)
        if _launches(v) and K:
            how: dict[str, Any] = {"K": K, "sigma": sigma, "tau": tau, "exact": exact, "rule": rule}
            return _triton().lower_steps(v, perturb, latent, theta, phi, lr, **how)
        batches = [v + sigma * eps for eps in perturb] * (K if len(perturb) == 1 else 1)
        return reference.lower_steps(batches[:K], latent or [None] * K, theta, phi, lr, tau=tau, rule=rule)
    switches = (K, 0, sigma, tau, exact, False, False, *rule, False)
    out = torch.ops.eblvm.grbm_bilevel(v, list(perturb), list(latent), *theta, *phi, lr, lr, *switches)
    return Phi(*out[4:11]), out[12]


def memory() -> tuple[int, int]:
    """Bytes of scratch memory in this thread's last native step, and what of it was tape for the unroll's reverse."""
    return torch.ops.eblvm.grbm_bilevel_memory()


def native() -> bool:
    return _NATIVE


def backends() -> list[Backend]:
    """Which backend serves on which device, and why not the others."""
    return op_backends("grbm_bilevel")


def _launches(v: Tensor) -> bool:
    """Do the Triton kernels serve? They cannot be launched on the wrapped tensors of a torch.func transform."""
    if not TRITON or v.device.type != "cuda" or v.numel() == 0:
        return False
    return torch._C._functorch.maybe_current_level() is None and v.shape[-2] * max(v.shape[-1], 1) < 2**31


def _triton() -> ModuleType:
    from eblvm.kernels.grbm_bilevel import triton

    return triton


def _check(
    v: Tensor,
    perturb: Sequence[Tensor],
    latent: Sequence[Tensor],
    theta: Theta,
    phi: Phi,
    lr: Tensor,
    unroll_lr: Tensor,
    steps: int,
    noises: int,
) -> None:
    """What the native step checks itself."""
    W = theta.W
    if W.dim() < 2 or v.dim() != W.dim():
        got = f"W of shape {tuple(W.shape)} and v of shape {tuple(v.shape)}"
        raise ValueError(f"grbm_bilevel got {got}; expected [..., D, H] and [..., B, D]")
    lead, (D, H), B = tuple(W.shape[:-2]), W.shape[-2:], v.shape[-2]
    if len(perturb) not in (1, steps):
        raise ValueError(f"grbm_bilevel got {len(perturb)} perturbations; expected 1 (shared) or one a step, {steps}")
    if len(latent) != noises:
        raise ValueError(f"grbm_bilevel got {len(latent)} latent noises; expected {noises}")
    own: dict[str, tuple[int, ...]] = {"W": (D, H), "b": (D,), "c": (H,), "log_sigma": (D,)}
    own |= dict.fromkeys(("A", "m_weight", "v_weight"), (H, D)) | dict.fromkeys(("a", "m_bias", "v_bias"), (H,))
    tensors = theta._asdict() | phi._asdict() | {"lr": lr, "unroll_lr": unroll_lr, "v": v}
    tensors |= {f"perturb[{i}]": t for i, t in enumerate(perturb)} | {f"latent[{i}]": t for i, t in enumerate(latent)}
    for name, t in tensors.items():
        batch = {"v": (B, D), "p": (B, D), "l": (B, H)} if name == "v" or "[" in name else {}
        expected = (*lead, *(batch[name[0]] if batch else own.get(name, ())))
        if tuple(t.shape) != expected:
            raise ValueError(f"grbm_bilevel got {name} of shape {tuple(t.shape)}; expected {expected}")
        for what in ("dtype", "device"):
            if getattr(t, what) != getattr(W, what):
                got, wanted = getattr(t, what), getattr(W, what)
                raise ValueError(f"grbm_bilevel got {name} of {what} {got}; expected that of W, {wanted}")


def flops(B: int, D: int, H: int, *, K: int, N: int, shared: bool, sgd: bool) -> int:
    """Of the matrix products of one replica's step, as native.cpp takes them."""
    full, square = 2 * B * D * H, 2 * B * B
    count = 2 * K + 4 + (0 if K + N == 0 else 1 if shared else K + N)  # real steps, upper level, x
    if N == 0:
        return full * count
    count += 2 + (1 if shared else N)  # r W, r A^T; W from x
    if sgd and shared and B < 2 * D:  # the dual
        return full * count + square * (3 * D + (2 * N + 3) * H)
    return full * (count + 2 * N + 2 + 2 * N - 1)  # forward; A from the upper level; reverse


def _op_flops(v: Tensor, perturb: Sequence[Tensor], latent: Any, W: Tensor, *rest: Any, **_: Any) -> int:
    B, D, H = v.shape[-2], *W.shape[-2:]
    K, N, _sigma, _tau, _exact, sgd = rest[12:18]
    one = flops(B, D, H, K=K, N=N, shared=len(perturb) == 1 and K + N > 0, sgd=sgd)
    if not rest[-1]:
        one -= 2 * B * D * H * 4  # the upper level's
    return one * (W.numel() // (D * H))


if _NATIVE:
    register_flop_formula(torch.ops.eblvm.grbm_bilevel, get_raw=True)(_op_flops)
