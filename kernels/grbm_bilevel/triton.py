"""The bi-level GRBM step in Triton: three launches with the products inside, whatever K and N are.

`triton_lower.py` has all lower steps, `triton_upper.py` the upper level and the reverse. In float32 and float64; sums
are in a fixed order. SGD on a shared batch is unrolled in the dual, where that is cheaper.
"""

from collections.abc import Sequence
from typing import Any

import torch
import triton
from torch import Tensor

from eblvm.kernels.adam_unroll.reference import Rule
from eblvm.kernels.grbm.triton import problem_of
from eblvm.kernels.grbm_bilevel import reference, triton_rate
from eblvm.kernels.grbm_bilevel.reference import Phi, Result, Theta
from eblvm.kernels.grbm_bilevel.triton_lower import lower_kernel
from eblvm.kernels.grbm_bilevel.triton_upper import residual_kernel, reverse_kernel
from eblvm.kernels.runtime.tiles import ALL_REGISTERS
from eblvm.kernels.runtime.triton_report import CAPABILITIES, Variant

BM, BH = 16, 16  # samples and latent units of a tile
BV = 32  # visible units of a program that sums over samples
WARPS = 4


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
    """`reference.lower_steps` on v + sigma eps, one eps for all steps or one for each."""
    how: dict[str, Any] = {
        "K": K,
        "N": 0,
        "sigma": sigma,
        "tau": tau,
        "exact": exact,
        "sgd": False,
        "rule": rule,
        "upper": False,
    }
    moved, _ = _lower(v, perturb, latent, theta, phi, lr, lr, **how)
    return moved["phi"], moved["lower"]


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
    """`reference.grbm_bilevel`."""
    rate, gram = unroll_lr, None
    if auto_rate and N and v.shape[-2] <= triton_rate.LARGEST:
        gram = gram_of(v, perturb[-1], sigma)
        rate = triton_rate.step_size(gram)
    elif auto_rate and N:
        rate = reference.step_size(v + sigma * perturb[-1])
    how: dict[str, Any] = {
        "K": K,
        "N": N,
        "sigma": sigma,
        "tau": tau,
        "exact": exact,
        "sgd": sgd,
        "rule": rule,
        "upper": True,
    }
    moved, tape = _lower(v, perturb, latent, theta, phi, lr, rate, **how, gram=gram)
    batch, (D, H), replicas = v.shape[-2], theta.W.shape[-2:], theta.W.shape[:-2].numel()
    blocks = triton.cdiv(D, BV)

    def new(*shape: int) -> Tensor:
        return torch.empty((replicas, *shape), dtype=v.dtype, device=v.device)

    tape["r"] = new(batch, D)
    last = tape["eps"] if len(perturb) == 1 else tape["eps"][K + N]
    numbers = (last, tape["z"][N], tape["noise"][0 if exact else K + N])
    residual_kernel[(triton.cdiv(batch, BM), triton.cdiv(D, tape["constants"]["BD"]), replicas)](
        tape["v"], *numbers, tape["W"], tape["A"], tape["b"], tape["log_sigma"], tape["r"], batch,
        **_constants(tape["constants"], "D H SIGMA TAU WIDE PRECISION BM BD BH"), num_warps=WARPS,
        maxnreg=ALL_REGISTERS,
    )  # fmt: skip
    scratch = {"gap": (batch, H), "z_bar": (batch, H), "A_bar": (H, D), "G_bar": (H, D)}
    scratch |= {} if sgd else {"m_bar": (H, D), "v_bar": (H, D)}
    tape |= {name: new(*shape) for name, shape in scratch.items()} if N else {}
    gradient = Theta(*(torch.empty(t.shape, dtype=t.dtype, device=t.device) for t in theta))
    tape |= {f"{name}_bar": t for name, t in gradient._asdict().items()} | {"loss": new(blocks)}
    reverse_kernel[(triton.cdiv(H, BH) + blocks, replicas)](
        *(tape.get(name, tape["v"]) for name in REVERSE.split()), batch, K, N,
        **_constants(tape["constants"], REVERSE_CONSTANTS), BV=BV, num_warps=WARPS, maxnreg=ALL_REGISTERS,
    )  # fmt: skip
    return Result(gradient, moved["phi"], tape["loss"].sum(-1).view(lr.shape), moved["lower"])


LOWER = (
    "v eps noise W b c log_sigma A0 a0 mA ma vA va count lr rate A1 a1 mA1 ma1 vA1 va1 "
    "A aN x z delta G m v2 bias M S lower"
)
REVERSE = (
    "v eps noise r W b log_sigma A count rate x z G m v2 bias M S gap z_bar A_bar G_bar m_bar v_bar "
    "W_bar b_bar c_bar log_sigma_bar loss"
)
STEP_CONSTANTS = "D H SIGMA TAU EXACT SGD SHARED UNROLLED DUAL B1 B2 EPS EPS_ROOT WIDE PRECISION BM BD BH BK"
LOWER_CONSTANTS, REVERSE_CONSTANTS = f"{STEP_CONSTANTS} UPPER", STEP_CONSTANTS


def _lower(
    v: Tensor, perturb: Sequence[Tensor], latent: Sequence[Tensor], theta: Theta, phi: Phi, lr: Tensor, rate: Tensor,
    *, K: int, N: int, sigma: float, tau: float, exact: bool, sgd: bool, rule: Rule, upper: bool,
    gram: Tensor | None = None,
) -> tuple[dict[str, Any], dict[str, Any]]:  # fmt: skip
    """({phi after the real steps, the lower loss}, everything that the upper level reads)."""
    batch, (D, H), replicas = v.shape[-2], theta.W.shape[-2:], theta.W.shape[:-2].numel()
    shared = len(perturb) == 1

    def new(*shape: int) -> Tensor:
        return torch.empty(shape, dtype=v.dtype, device=v.device)

    given = {"v": v} | theta._asdict() | {"A0": phi.A, "a0": phi.a, "mA": phi.m_weight, "ma": phi.m_bias}
    given |= {"vA": phi.v_weight, "va": phi.v_bias, "count": phi.step_count, "lr": lr, "rate": rate}
    tape: dict[str, Any] = {name: t.contiguous() for name, t in given.items()}
    tape |= {"eps": stacked(perturb), "noise": stacked(latent) if len(latent) else tape["v"]}
    moved = {f"{name}1": torch.empty_like(tape[f"{name}0" if name in ("A", "a") else name]) for name in MOVED}
    sets = min(K + N, 1) if shared else K + N
    tape |= moved | {"x": new(max(sets, 1), replicas, batch, H), "delta": new(replicas, batch, H)}
    tape["z"] = new(N + 1, replicas, batch, H) if upper else tape["delta"]
    tape |= {"A": new(replicas, H, D), "aN": new(replicas, H)} if N else {"A": tape["A1"], "aN": tape["a1"]}
    if N and not sgd:
        tape |= {"G": new(N, replicas, H, D), "m": new(N + 1, replicas, H, D), "v2": new(N + 1, replicas, H, D)}
    tape["bias"] = new(max(N, 1), replicas, 3, H)
    blocks = triton.cdiv(H, BH)
    tape["lower"] = new(replicas, blocks + 1)
    dual = sgd and shared and N > 0 and batch < 2 * D
    if dual:
        tape |= {"M": gram_of(v, perturb[0], sigma) if gram is None else gram, "S": new(replicas, batch, H)}
    problem = problem_of("columns", v, theta.W, 2)
    tape["constants"] = blocks_of_d(problem.precision, v.element_size()) | {
        "BM": BM, "BH": BH,
        "D": D, "H": H, "SIGMA": sigma, "TAU": tau, "EXACT": exact, "SGD": sgd, "SHARED": shared, "UPPER": upper,
        "UNROLLED": N > 0, "DUAL": dual, "B1": rule.b1, "B2": rule.b2, "EPS": rule.eps, "EPS_ROOT": rule.eps_root,
        "WIDE": v.dtype == torch.float64, "PRECISION": problem.precision,
    }  # fmt: skip
    lower_kernel[(blocks + 1, replicas)](
        *(tape.get(name, tape["v"]) for name in LOWER.split()), batch, K, N,
        **_constants(tape["constants"], LOWER_CONSTANTS), num_warps=WARPS, maxnreg=ALL_REGISTERS,
    )  # fmt: skip
    reference.tape_bytes = sum(tape[name].nbytes for name in ("z", "G", "m", "v2", "bias") if N and name in tape)
    after = Phi._make(
        [*(moved[name].view(t.shape) for name, t in zip(AFTER, phi[:6], strict=True)), phi.step_count + K]
    )
    return {"phi": after, "lower": tape["lower"].sum(-1).view(lr.shape)}, tape


def gram_of(v: Tensor, eps: Tensor, sigma: float) -> Tensor:
    """M = V V^T + 1 1^T of V = v + sigma eps, [..., B, B]."""
    V = torch.add(v, eps, alpha=sigma)
    return torch.matmul(V, V.mT).add_(1)


def blocks_of_d(precision: str, element: int) -> dict[str, int]:
    """Columns of a gradient, and what of D a product takes at once: without tensor cores a thread holds whole rows."""
    return {"BD": 16 if element == 8 else 32 if precision == "ieee" else 64, "BK": 16 if precision == "ieee" else 32}


MOVED = ("A", "a", "mA", "ma", "vA", "va")
AFTER = ("A1", "a1", "mA1", "ma1", "vA1", "va1")


def stacked(tensors: Sequence[Tensor]) -> Tensor:
    """One tensor with a first axis, without a copy where they already lie one after the other."""
    first = tensors[0]
    if len(tensors) == 1:
        return first.contiguous().unsqueeze(0)
    together = all(
        t.is_contiguous()
        and t.untyped_storage()._cdata == first.untyped_storage()._cdata
        and t.storage_offset() == first.storage_offset() + i * first.numel()
        for i, t in enumerate(tensors)
    )
    if together and not torch._C._functorch.is_functorch_wrapped_tensor(first):
        return first.as_strided((len(tensors), *first.shape), (first.numel(), *first.stride()))
    return torch.stack(list(tensors))


def _constants(values: dict[str, Any], names: str) -> dict[str, Any]:
    return {name: values[name] for name in names.split()}


def variants() -> list[Variant]:
    """The sampled KL with Adam and the exact one with SGD at Frey face's sizes: float32 everywhere, else cc 80."""
    found = triton_rate.variants()
    values: dict[str, Any] = {"BM": BM, "BH": BH} | {
        "D": 560, "H": 400, "SIGMA": 0.3, "TAU": 0.1, "UPPER": True, "UNROLLED": True, "EPS": 1e-8, "EPS_ROOT": 1e-16,
        "B1": 0.9, "B2": 0.95, "BV": BV,
    }  # fmt: skip
    kernels = {
        "lower": (lower_kernel, f"{LOWER_CONSTANTS}"),
        "residual": (residual_kernel, "D H SIGMA TAU WIDE PRECISION BM BD BH"),
        "reverse": (reverse_kernel, f"{REVERSE_CONSTANTS} BV"),
    }
    for element, precision in (("fp32", "ieee"), ("fp32", "tf32"), ("fp64", "ieee")):
        for sgd in (False, True):
            mode: dict[str, Any] = {
                "EXACT": sgd,
                "SGD": sgd,
                "SHARED": sgd,
                "WIDE": element == "fp64",
                "PRECISION": precision,
            }
            mode |= {"DUAL": sgd} | blocks_of_d(precision, 8 if element == "fp64" else 4)
            for name, (kernel, constants) in kernels.items():
                if sgd and (name == "residual" or (element, precision) != ("fp32", "ieee")):
                    continue
                everywhere = (element, precision) == ("fp32", "ieee") and not sgd
                signature = {p: f"*{element}" for p in kernel.arg_names if p.endswith("_ptr")}
                signature |= {p: "i32" for p in ("batch", "K", "N") if p in kernel.arg_names}
                label = f"grbm_bilevel {name} {'dual' if sgd else 'adam'} {element} {precision}"
                own = {n: (values | mode)[n] for n in constants.split()}
                places = CAPABILITIES if everywhere else (80,)
                found.append(
                    Variant(
                        label, kernel, signature, own, WARPS, capabilities=places, fused=True, registers=ALL_REGISTERS
                    )
                )  # fmt: skip
    return found
