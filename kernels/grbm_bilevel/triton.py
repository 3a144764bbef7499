"""The bi-level GRBM step in Triton: three launches with the products inside, whatever K and N are.

`triton_lower.py` has all lower steps, `triton_upper.py` the upper level and the reverse. In float32 and float64; sums
are in a fixed order. SGD on a shared batch is unrolled in the dual, where that is cheaper.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import triton
from torch import Tensor

from eblvm.kernels.grbm.triton import capability_of
from eblvm.kernels.grbm_bilevel import reference, triton_rate
from eblvm.kernels.grbm_bilevel.reference import Phi, Result, Settings, Theta
from eblvm.kernels.grbm_bilevel.triton_lower import lower_kernel
from eblvm.kernels.grbm_bilevel.triton_upper import residual_kernel, reverse_kernel
from eblvm.kernels.runtime.pointers import pointers, stacked
from eblvm.kernels.runtime.tiles import ALL_REGISTERS, dot_precision
from eblvm.kernels.runtime.triton_report import CAPABILITIES, Variant

BM, BH = 16, 16  # samples and latent units of a tile
BV = 32  # visible units of a program that sums over samples
WARPS = 4
TAPE = ("z", "G", "m", "v2", "bias")  # written in every unrolled step and read by its reverse


class Step(NamedTuple):
    """Arguments that the launches of one step share."""

    tensors: dict[str, Tensor]  # by the names of the kernels' pointers; what the settings leave out is empty
    sizes: dict[str, int]
    constants: dict[str, Any]

    def launch(self, kernel: Any, grid: tuple[int, ...], **others: Tensor) -> None:
        """The kernel on the tensors that its pointers name, `others` in the place of those of the step."""
        tensors, values = pointers(kernel, self.tensors | others), self.sizes | self.constants
        own = {name: values[name] for name in kernel.arg_names if name not in tensors}
        kernel[grid](**tensors, **own, num_warps=WARPS, maxnreg=ALL_REGISTERS)


def lower_steps(
    v: Tensor,
    perturb: Sequence[Tensor],
    latent: Sequence[Tensor],
    theta: Theta,
    phi: Phi,
    phi_rate: Tensor,
    settings: Settings,
) -> tuple[Phi, Tensor]:
    """`reference.lower_steps`."""
    real = settings.real()
    step = _step(v, perturb, latent, theta, phi, phi_rate, phi_rate, real, upper=False)
    return _run_lower(step, phi, phi_rate)


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
    """`reference.grbm_bilevel`."""
    K, N, rate, gram = settings.K, settings.N, unroll_rate, None
    if settings.auto_rate and N and v.shape[-2] <= triton_rate.LARGEST:
        gram = gram_of(v, perturb[-1], settings.sigma)
        rate = triton_rate.step_size(gram)
    elif settings.auto_rate and N:
        rate = reference.step_size(v + settings.sigma * perturb[-1])
    step = _step(v, perturb, latent, theta, phi, phi_rate, rate, settings, upper=True, gram=gram)
    moved, lower = _run_lower(step, phi, phi_rate)

    tensors = step.tensors
    batch, (D, H), replicas = v.shape[-2], theta.W.shape[-2:], theta.W.shape[:-2].numel()
    last = tensors["eps"] if len(perturb) == 1 else tensors["eps"][K + N]
    noise = tensors["noise"][0 if settings.exact else K + N]
    tiles = (triton.cdiv(batch, BM), triton.cdiv(D, step.constants["BD"]), replicas)
    step.launch(residual_kernel, tiles, eps=last, z=tensors["z"][N], noise=noise)

    gradient = Theta(*(torch.empty(t.shape, dtype=t.dtype, device=t.device) for t in theta))
    blocks = triton.cdiv(D, BV)
    loss = v.new_empty(replicas, blocks)
    W_bar, b_bar, c_bar, log_sigma_bar = gradient
    bars = {"W_bar": W_bar, "b_bar": b_bar, "c_bar": c_bar, "log_sigma_bar": log_sigma_bar}
    step.launch(reverse_kernel, (triton.cdiv(H, BH) + blocks, replicas), **bars, loss=loss)
    return Result(gradient, moved, loss.sum(-1).view(phi_rate.shape), lower)


def _run_lower(step: Step, phi: Phi, phi_rate: Tensor) -> tuple[Phi, Tensor]:
    """(phi after the real steps, the lower loss), and in the step's tensors everything that the upper level reads."""
    tensors, N = step.tensors, step.sizes["N"]
    replicas, programs = tensors["lower"].shape
    step.launch(lower_kernel, (programs, replicas))
    reference.tape_bytes = sum(tensors[name].nbytes for name in TAPE) if N else 0
    moved = (tensors[f"{name}1"].view(t.shape) for name, t in zip(MOVED, phi[:6], strict=True))
    return Phi._make([*moved, phi.step_count + step.sizes["K"]]), tensors["lower"].sum(-1).view(phi_rate.shape)


MOVED = ("A", "a", "mA", "ma", "vA", "va")


def _step(
    v: Tensor,
    perturb: Sequence[Tensor],
    latent: Sequence[Tensor],
    theta: Theta,
    phi: Phi,
    phi_rate: Tensor,
    rate: Tensor,
    settings: Settings,
    *,
    upper: bool,
    gram: Tensor | None = None,
) -> Step:
    """Inputs, results and scratch memory of a step; `gram` is M where it is known already."""
    K, N, sgd, batch, (D, H) = settings.K, settings.N, settings.sgd, v.shape[-2], theta.W.shape[-2:]
    shared = len(perturb) == 1
    dual = sgd and shared and N > 0 and batch < 2 * D
    absent = v.new_empty(0)
    inputs = {"v": v, **theta._asdict(), "count": phi.step_count, "phi_rate": phi_rate, "unroll_rate": rate}
    inputs |= dict(zip(MOVED, phi[:6], strict=True))
    tensors = {name: t.contiguous() for name, t in inputs.items()}
    tensors |= {"eps": stacked(perturb), "noise": stacked(latent) if len(latent) else absent}
    tensors |= {f"{name}1": torch.empty_like(tensors[name]) for name in MOVED}
    tensors |= _memory(v, theta.W, settings, shared=shared, dual=dual, upper=upper)
    if N == 0:
        tensors |= {"AN": tensors["A1"], "aN": tensors["a1"]}
    tensors["M"] = absent
    if dual:
        tensors["M"] = gram_of(v, perturb[0], settings.sigma) if gram is None else gram
    precision, rule = dot_precision(v.dtype, capability_of(v)), settings.rule
    constants = blocks_of_d(precision, v.element_size()) | {
        "BM": BM, "BH": BH, "BV": BV,
        "D": D, "H": H, "SIGMA": settings.sigma, "TAU": settings.tau, "EXACT": settings.exact, "SGD": sgd,
        "SHARED": shared, "UPPER": upper, "UNROLLED": N > 0, "DUAL": dual,
        "B1": rule.b1, "B2": rule.b2, "EPS": rule.eps, "EPS_ROOT": rule.eps_root,
        "WIDE": v.dtype == torch.float64, "PRECISION": precision,
    }  # fmt: skip
    return Step(tensors, {"batch": batch, "K": K, "N": N}, constants)


def _memory(v: Tensor, W: Tensor, settings: Settings, *, shared: bool, dual: bool, upper: bool) -> dict[str, Tensor]:
    """Allocate what launches write and later ones read; empty where the settings leave it out."""
    K, N, batch, (D, H), replicas = settings.K, settings.N, v.shape[-2], W.shape[-2:], W.shape[:-2].numel()
    unrolled, adam = N > 0, N > 0 and not settings.sgd
    x_batches = max(min(K + N, 1) if shared else K + N, 1)

    def new(*shape: int, when: bool = True) -> Tensor:
        return torch.empty(shape if when else (0,), dtype=v.dtype, device=v.device)

    return {
        "x": new(x_batches, replicas, batch, H),
        "delta": new(replicas, batch, H),
        "z": new(N + 1, replicas, batch, H, when=upper),
        "AN": new(replicas, H, D, when=unrolled),
        "aN": new(replicas, H, when=unrolled),
        "G": new(N, replicas, H, D, when=adam),
        "m": new(N + 1, replicas, H, D, when=adam),
        "v2": new(N + 1, replicas, H, D, when=adam),
        "bias": new(max(N, 1), replicas, 3, H),
        "S": new(replicas, batch, H, when=dual),
        "lower": new(replicas, triton.cdiv(H, BH) + 1),
        "r": new(replicas, batch, D, when=upper),
        "gap": new(replicas, batch, H, when=upper and unrolled),
        "z_bar": new(replicas, batch, H, when=upper and unrolled),
        "A_bar": new(replicas, H, D, when=upper and unrolled),
        "G_bar": new(replicas, H, D, when=upper and unrolled),
        "m_bar": new(replicas, H, D, when=upper and adam),
        "v_bar": new(replicas, H, D, when=upper and adam),
    }


def gram_of(v: Tensor, eps: Tensor, sigma: float) -> Tensor:
    """M = V V^T + 1 1^T of V = v + sigma eps, [..., B, B]."""
    V = torch.add(v, eps, alpha=sigma)
    return torch.matmul(V, V.mT).add_(1)


def blocks_of_d(precision: str, element: int) -> dict[str, int]:
    """Columns of D per tile of a gradient and per product: without tensor cores a thread has whole rows."""
    return {"BD": 16 if element == 8 else 32 if precision == "ieee" else 64, "BK": 16 if precision == "ieee" else 32}


def variants() -> list[Variant]:
    """The sampled KL with Adam and the exact one with SGD at Frey face's sizes: float32 everywhere, else cc 80."""
    kernels = {"lower": lower_kernel, "residual": residual_kernel, "reverse": reverse_kernel}
    constants: dict[str, Any] = {
        "BM": BM, "BH": BH, "BV": BV, "D": 560, "H": 400, "SIGMA": 0.3, "TAU": 0.1, "UPPER": True, "UNROLLED": True,
        "B1": 0.9, "B2": 0.95, "EPS": 1e-8, "EPS_ROOT": 1e-16,
    }  # fmt: skip
    variants = triton_rate.variants()
    for element, precision in (("fp32", "ieee"), ("fp32", "tf32"), ("fp64", "ieee")):
        for sgd in (False, True):
            mode = constants | dict.fromkeys(("EXACT", "SGD", "SHARED", "DUAL"), sgd)
            mode |= {"WIDE": element == "fp64", "PRECISION": precision}
            mode |= blocks_of_d(precision, 8 if element == "fp64" else 4)
            everywhere = (element, precision) == ("fp32", "ieee") and not sgd
            for name, kernel in kernels.items():
                if sgd and (name == "residual" or (element, precision) != ("fp32", "ieee")):
                    continue
                arguments: dict[str, object] = {p: f"*{element}" for p in kernel.arg_names if p.endswith("_ptr")}
                arguments |= {p: n for p, n in {"batch": 100, "K": 5, "N": 5}.items() if p in kernel.arg_names}
                label = f"grbm_bilevel {name} {'dual' if sgd else 'adam'} {element} {precision}"
                own = {n: mode[n] for n in kernel.arg_names if n in mode}
                where = CAPABILITIES if everywhere else (80,)
                variants.append(
                    Variant(
                        label, kernel, arguments, own, WARPS, capabilities=where, fused=True, registers=ALL_REGISTERS
                    )
                )
    return variants
