"""Energy and score of a Gaussian RBM in one pass, with a fused first order, for every score loss on a GRBM.

E(v, h) = 1/2 sum (v-b)^2/sigma^2 - c.h - v W h        grad_v -E = (b-v)/sigma^2 + h W^T
F(v)    = 1/2 sum (v-b)^2/sigma^2 - sum softplus(c+vW)  grad_v -F = (b-v)/sigma^2 + sigmoid(c+vW) W^T
"""

from typing import Any

import torch
from torch import Tensor
from torch.utils.flop_counter import register_flop_formula

from eblvm.kernels.grbm import reference
from eblvm.kernels.runtime.arguments import expect_grbm
from eblvm.kernels.runtime.dispatch import Backend, backend_for, native_status, op_backends
from eblvm.kernels.runtime.orders import by_reference, order

__all__ = ["backends", "grbm"]

_NATIVE, _ = native_status("grbm")


class _Native:
    value = staticmethod(torch.ops.eblvm.grbm) if _NATIVE else None
    first = staticmethod(torch.ops.eblvm.grbm_first) if _NATIVE else None


def _pull_value(backend: Any, arguments: Any, kept: Any, cotangents: Any, wanted: Any) -> tuple[Any, ...]:
    wants_v, *_, wants_h = wanted
    W, b, c, log_sigma, *rest = _first(backend, *cotangents, *kept, *arguments, wants_v, wants_h)
    return rest.pop(0) if wants_v else None, W, b, c, log_sigma, rest.pop(0) if wants_h else None


def _first_from_inputs(g: Tensor, r: Tensor, _kept: Tensor, *rest: Any) -> tuple[Tensor, ...]:
    """`reference.first` with what `value` keeps as the function of the inputs that it is."""
    *inputs, _, _ = rest
    return reference.first(g, r, reference.value(*inputs)[-1], *rest)


_value = order("value", _pull_value, results=2, keeps=1)
_first = order("first", by_reference(_first_from_inputs, remade=(2,)))


def _value_flops(v: Tensor, W: Tensor, b: Tensor, c: Tensor, log_sigma: Tensor, h: Tensor | None, **_: Any) -> int:
    return 2 * v.numel() * W.shape[-1] * (2 if h is None else 1)


def _first_flops(g: Tensor, r: Tensor, kept: Tensor, v: Tensor, W: Tensor, *rest: Any, **_: Any) -> int:
    *_parameters, h, wants_v, wants_h = rest
    return 2 * v.numel() * W.shape[-1] * (3 + wants_v if h is None else 1 + wants_h)


if _NATIVE:
    register_flop_formula(torch.ops.eblvm.grbm, get_raw=True)(_value_flops)
    register_flop_formula(torch.ops.eblvm.grbm_first, get_raw=True)(_first_flops)


def grbm(
    v: Tensor, W: Tensor, b: Tensor, c: Tensor, log_sigma: Tensor, h: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """(energy [..., B], score [..., B, D]): E(v, h) and grad_v of -E; without h the free energy F(v) and grad_v of -F.

    v [..., B, D], W [..., D, H], b and log_sigma [..., D], c [..., H], h [..., B, H]; leading axes are replicas.
    Differentiable in everything, to any order; the first is fused.
    """
    expect_grbm("grbm", v, W, b, c, log_sigma, {} if h is None else {"h": (h, ("B", "H"))})
    if torch.compiler.is_compiling():
        energy, score, *_ = reference.value(v, W, b, c, log_sigma, h)
    else:
        backend = backend_for("grbm", v, reference, _Native if _NATIVE else None)
        energy, score, *_ = _value(backend, v, W, b, c, log_sigma, h)
    return energy, score


def backends() -> list[Backend]:
    """The backends of this op: which is used on which device, and why not the others."""
    return op_backends("grbm")
