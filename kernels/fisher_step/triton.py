"""The pointwise parts of a Fisher lower step in Triton; arithmetic is float32, and float64 for float64."""

# The kernels are in a language of their own, which has no types.
# mypy: disable-error-code="no-untyped-def,untyped-decorator"

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from eblvm.kernels.elu_second_order.triton import expm1_negative
from eblvm.kernels.runtime.triton_report import Variant

BLOCK = 256  # the tensors are small: more programs


@triton.jit
def sample_kernel(out_ptr, eps_ptr, h_to, size, B: tl.constexpr, H: tl.constexpr, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    keep = i < size
    eps = tl.load(eps_ptr + i, mask=keep, other=0.0)
    at = i // H % B * (2 * H) + i % H
    mean = tl.load(out_ptr + at, mask=keep, other=0.0).to(eps.dtype)
    log_std = tl.load(out_ptr + at + H, mask=keep, other=0.0).to(eps.dtype)
    tl.store(h_to + i, mean + tl.exp(log_std) * eps, mask=keep)


@triton.jit
def slope_kernel(y_ptr, to, size, WIDE: tl.constexpr, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    keep = i < size
    y = tl.load(y_ptr + i, mask=keep, other=0.0)
    below = expm1_negative(tl.minimum(y, 0.0), 15 if WIDE else 8)
    tl.store(to + i, 2.0 * tl.where(y > 0, y, below * (below + 1.0)), mask=keep)


@triton.jit
def residual_kernel(
    slope_ptr, out_ptr, eps_ptr, weight_ptr, r_to, r_bar_to, size,
    S: tl.constexpr, B: tl.constexpr, H: tl.constexpr, WEIGHTS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    keep = i < size
    eps = tl.load(eps_ptr + i, mask=keep, other=0.0)
    b = i // H % B
    log_std = tl.load(out_ptr + b * (2 * H) + H + i % H, mask=keep, other=0.0).to(eps.dtype)
    r = tl.load(slope_ptr + i, mask=keep, other=0.0) - eps * tl.exp(-log_std)
    weight = tl.load(weight_ptr + b % WEIGHTS, mask=keep, other=0.0)
    tl.store(r_to + i, r, mask=keep)
    tl.store(r_bar_to + i, r * (weight / (S * B)), mask=keep)


@triton.jit
def curved_kernel(t_ptr, y_ptr, to, size, WIDE: tl.constexpr, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    keep = i < size
    y = tl.load(y_ptr + i, mask=keep, other=0.0)
    t = tl.load(t_ptr + i, mask=keep, other=0.0)
    below = expm1_negative(tl.minimum(y, 0.0), 15 if WIDE else 8)
    tl.store(to + i, 2.0 * t * (below + 1.0) * (2.0 * below + 1.0), mask=keep)


@triton.jit
def outputs_bar_kernel(
    h_ptr, r_ptr, out_ptr, eps_ptr, scale_ptr, to, size,
    S: tl.constexpr, H: tl.constexpr, SCALED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    keep = i < size
    at = i // H * (2 * H) + i % H
    std = tl.exp(tl.load(out_ptr + at + H, mask=keep, other=0.0).to(h_ptr.dtype.element_ty))
    mean_bar = tl.zeros_like(std)
    log_std_bar = tl.zeros_like(std)
    for s in tl.static_range(S):
        h = tl.load(h_ptr + s * size + i, mask=keep, other=0.0)
        r = tl.load(r_ptr + s * size + i, mask=keep, other=0.0)
        eps = tl.load(eps_ptr + s * size + i, mask=keep, other=0.0)
        mean_bar += h
        log_std_bar += eps * (std * h + r / std)
    if SCALED:
        scale = tl.load(scale_ptr)
        mean_bar *= scale
        log_std_bar *= scale
    tl.store(to + at, mean_bar, mask=keep)
    tl.store(to + at + H, log_std_bar, mask=keep)


def sample(out_B2H: Tensor, eps_SBH: Tensor) -> Tensor:
    S, B, H = eps_SBH.shape
    h = eps_SBH.new_empty(S * B, H)
    _launch(sample_kernel, h.numel(), out_B2H.contiguous(), eps_SBH.contiguous(), h, B=B, H=H)
    return h


def slope(y_E: Tensor) -> Tensor:
    y_E, to = y_E.contiguous(), torch.empty_like(y_E, memory_format=torch.contiguous_format)
    _launch(slope_kernel, y_E.numel(), y_E, to, WIDE=y_E.dtype == torch.float64)
    return to


def residual(slope_SBH: Tensor, out_B2H: Tensor, eps_SBH: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    S, B, H = eps_SBH.shape
    r, r_bar = (eps_SBH.new_empty(S, B, H) for _ in range(2))
    given = slope_SBH.contiguous(), out_B2H.contiguous(), eps_SBH.contiguous(), weight.contiguous()
    _launch(residual_kernel, r.numel(), *given, r, r_bar, S=S, B=B, H=H, WEIGHTS=weight.numel())
    return r, r_bar


def curved(t_E: Tensor, y_E: Tensor) -> Tensor:
    t_E, y_E, to = t_E.contiguous(), y_E.contiguous(), torch.empty_like(t_E, memory_format=torch.contiguous_format)
    _launch(curved_kernel, t_E.numel(), t_E, y_E, to, WIDE=y_E.dtype == torch.float64)
    return to


def outputs_bar(h_bar_SBH: Tensor, r_bar_SBH: Tensor, out_B2H: Tensor, eps_SBH: Tensor, scale: Tensor | None) -> Tensor:
    S, B, H = eps_SBH.shape
    out = out_B2H.contiguous()
    to = torch.empty_like(out)
    given = h_bar_SBH.contiguous(), r_bar_SBH.contiguous(), out, eps_SBH.contiguous(), out if scale is None else scale
    _launch(outputs_bar_kernel, B * H, *given, to, S=S, H=H, SCALED=scale is not None)
    return to


def _launch(kernel: Any, size: int, *tensors: Tensor, **constants: Any) -> None:
    if size:
        kernel[(triton.cdiv(size, BLOCK),)](*tensors, size, **constants, BLOCK=BLOCK)


def variants() -> list[Variant]:
    """At CIFAR-10's latent units and a batch of 128, with q's outputs in 32 and in 16 bits."""
    sizes: dict[str, dict[str, Any]] = {
        "sample": {"B": 128, "H": 50},
        "slope": {"WIDE": False},
        "residual": {"S": 1, "B": 128, "H": 50, "WEIGHTS": 128},
        "curved": {"WIDE": False},
        "outputs_bar": {"S": 1, "H": 50, "SCALED": False},
    }
    kernels = {
        "sample": sample_kernel,
        "slope": slope_kernel,
        "residual": residual_kernel,
        "curved": curved_kernel,
        "outputs_bar": outputs_bar_kernel,
    }
    variants = []
    for name, kernel in kernels.items():
        for element in ("fp32", "fp64"):
            wide = {"WIDE": True} if element == "fp64" and "WIDE" in sizes[name] else {}
            pointers = [argument for argument in kernel.arg_names if argument.endswith(("_ptr", "to"))]
            arguments: dict[str, Any] = dict.fromkeys(pointers, f"*{element}") | {"size": 128 * 50}
            constants = sizes[name] | wide | {"BLOCK": BLOCK}
            variants.append(Variant(f"fisher_step {name} {element}", kernel, arguments, constants))
            if element == "fp32" and "out_ptr" in pointers:
                half = dict.fromkeys(("out_ptr", "to") if "to" in pointers else ("out_ptr",), "*bf16")
                variants.append(Variant(f"fisher_step {name} bf16", kernel, arguments | half, constants))
    return variants
