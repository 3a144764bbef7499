"""One bi-level denoising step on a GRBM with a linear Bernoulli posterior, by hand: no autograd graph, one native call.

theta's gradient of mean_B 1/2 |s(v~) + eps/sigma|^2 through N unrolled lower steps, and phi after K real ones. With a
batch that all steps share and unrolled SGD, the unroll lives in the logits (the dual). README.md derives it all.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils.flop_counter import register_flop_formula

from eblvm.kernels.adam_unroll import Rule
from eblvm.kernels.dispatch import Backend, native_status

__all__ = ["Phi", "Result", "Theta", "backends", "grbm_bilevel", "serves"]

_NATIVE, _NATIVE_REASON = native_status("grbm_bilevel")


class Theta(NamedTuple):
    """The model: W [..., D, H], b [..., D], c [..., H], log_sigma [..., D]."""

    W: Tensor
    b: Tensor
    c: Tensor
    log_sigma: Tensor


class Phi(NamedTuple):
    """The posterior's logits are v A^T + a, A [..., H, D], a [..., H]; Adam's moments of both and its steps [...]."""

    A: Tensor
    a: Tensor
    m_weight: Tensor
    m_bias: Tensor
    v_weight: Tensor
    v_bias: Tensor
    taken: Tensor


class Result(NamedTuple):
    gradient: Theta
    phi: Phi
    loss: Tensor  # [...], the upper loss
    lower: Tensor  # [...], the lower loss of the last real step; zero if K = 0


def serves(device: torch.device, dtype: torch.dtype) -> bool:
    return _NATIVE and device.type == "cpu" and dtype in (torch.float32, torch.float64)


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
    `unroll_lr`, or with `auto_rate` of 2 / lambda_max((v v^T + 1) / B). lr and unroll_lr have the leading axes.
    """
    if not _NATIVE:
        raise RuntimeError(f"grbm_bilevel has only a native backend, and that is missing: {_NATIVE_REASON}")
    switches = (K, N, sigma, tau, exact, sgd, auto_rate, *rule)
    out = torch.ops.eblvm.grbm_bilevel(v, list(perturb), list(latent), *theta, *phi, lr, unroll_lr, *switches)
    return Result(Theta(*out[:4]), Phi._make([*out[4:10], phi.taken + K]), out[10], out[11])


def backends() -> list[Backend]:
    """The op is the native one; where it is missing the engine's autograd step serves, which it must equal."""
    return [
        Backend("grbm_bilevel", "cpu", "native", _NATIVE, _NATIVE_REASON),
        Backend("grbm_bilevel", "cpu", "autograd", not _NATIVE, "native serves" if _NATIVE else "always there"),
        Backend("grbm_bilevel", "cuda", "autograd", True, "the native step is compiled for the CPU only"),
    ]


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
    return one * (W.numel() // (D * H))


if _NATIVE:
    register_flop_formula(torch.ops.eblvm.grbm_bilevel, get_raw=True)(_op_flops)
