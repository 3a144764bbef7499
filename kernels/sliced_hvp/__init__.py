"""The terms of sliced score matching on a GRBM in one pass: 1/2 |s|^2 and u^T H u for M directions u.

s = grad_v log p(v) and H = grad_v s = -diag(1/sigma^2) + W diag(sigmoid'(c+vW)) W^T. Averaged over random directions
u^T H u is Hutchinson's estimate of the trace. `engine/methods/losses` has the form for any energy.
"""

from typing import Any

import torch
from torch import Tensor
from torch.utils.flop_counter import register_flop_formula

from eblvm.kernels.runtime.arguments import expect_grbm
from eblvm.kernels.runtime.dispatch import Backend, backend_for, native_status, op_backends
from eblvm.kernels.runtime.orders import by_reference, order
from eblvm.kernels.sliced_hvp import reference

__all__ = ["backends", "sliced_hvp"]

_NATIVE, _ = native_status("sliced_hvp")


class _Native:
    value = staticmethod(torch.ops.eblvm.sliced_hvp) if _NATIVE else None
    first = staticmethod(torch.ops.eblvm.sliced_hvp_first) if _NATIVE else None


def _pull_value(backend: Any, arguments: Any, kept: Any, cotangents: Any, wanted: Any) -> tuple[Any, ...]:
    wants_v, wants_u, *_ = wanted
    W, b, c, log_sigma, *rest = _first(backend, *cotangents, *kept, *arguments, wants_v, wants_u)
    return rest.pop(0) if wants_v else None, rest.pop(0) if wants_u else None, W, b, c, log_sigma


def _first_from_inputs(f: Tensor, k: Tensor, _mean: Tensor, _score: Tensor, _slices: Tensor, *rest: Any) -> Any:
    """`reference.first` with what `value` keeps as the function of the inputs that it is."""
    *inputs, _, _ = rest
    _, _, mean, score, slices = reference.value(*inputs)
    return reference.first(f, k, mean, score, slices, *rest)


_value = order("value", _pull_value, results=2, keeps=3)
_first = order("first", by_reference(_first_from_inputs, remade=(2, 3, 4)))


def _value_flops(v: Tensor, u: Tensor, W: Tensor, *_rest: Any, **_: Any) -> int:
    return 2 * v.numel() * W.shape[-1] * (2 + u.shape[-3])


def _first_flops(*arguments: Any, **_: Any) -> int:
    *_kept, v, u, W, _b, _c, _log_sigma, wants_v, wants_u = arguments
    M = u.shape[-3]
    return 2 * v.numel() * W.shape[-1] * (3 + M + wants_v + M * wants_u)


if _NATIVE:
    register_flop_formula(torch.ops.eblvm.sliced_hvp, get_raw=True)(_value_flops)
    register_flop_formula(torch.ops.eblvm.sliced_hvp_first, get_raw=True)(_first_flops)


def sliced_hvp(v: Tensor, u: Tensor, W: Tensor, b: Tensor, c: Tensor, log_sigma: Tensor) -> tuple[Tensor, Tensor]:
    """(1/2 |s|^2 [..., B], u^T H u [M, ..., B]) at v [..., B, D] for directions u [M, ..., B, D].

    W [..., D, H], b and log_sigma [..., D], c [..., H]; leading axes are replicas. Differentiable in everything, to any
    order; the first is fused.
    """
    expect_grbm("sliced_hvp", v, W, b, c, log_sigma, {})
    if u.shape[1:] != v.shape:
        raise ValueError(f"sliced_hvp got u of shape {tuple(u.shape)}; expected {('M', *v.shape)}")
    for what in ("dtype", "device"):
        if getattr(u, what) != getattr(v, what):
            raise ValueError(f"sliced_hvp got u of {what} {getattr(u, what)}; expected that of v, {getattr(v, what)}")
    arguments = (v, u.movedim(0, -3), W, b, c, log_sigma)
    if torch.compiler.is_compiling():
        half_square, curvature, *_ = reference.value(*arguments)
    else:
        backend = backend_for("sliced_hvp", v, reference, _Native if _NATIVE else None)
        half_square, curvature, *_ = _value(backend, *arguments)
    return half_square, curvature.movedim(-2, 0)


def backends() -> list[Backend]:
    """The backends of this op: which is used on which device, and why not the others."""
    return op_backends("sliced_hvp")
