"""ELU with a fused forward, backward and double backward: the activation of the deep energy.

A score is a first derivative of the energy and its loss is differentiated again, so an activation meets all three.
Contiguous and channels_last tensors keep their memory order. README.md has the formulas.
"""

from typing import Any

import torch
from torch import Tensor

from eblvm.kernels.elu_second_order import reference
from eblvm.kernels.runtime.dispatch import Backend, backend_for, native_status, op_backends
from eblvm.kernels.runtime.orders import by_reference, order

__all__ = ["backend", "backends", "elu_second_order"]

_NATIVE, _ = native_status("elu_second_order")


class _Native:
    value = staticmethod(torch.ops.eblvm.elu_second_order) if _NATIVE else None
    first = staticmethod(torch.ops.eblvm.elu_second_order_first) if _NATIVE else None
    second = staticmethod(torch.ops.eblvm.elu_second_order_second) if _NATIVE else None


class _Shapes:
    """On the meta device: the results of a fused backend and none of the reference's intermediates."""

    @staticmethod
    def value(x: Tensor, alpha: float) -> Tensor:
        return torch.empty_like(x)

    @staticmethod
    def first(g: Tensor, x: Tensor, alpha: float) -> Tensor:
        return torch.empty_like(x)

    @staticmethod
    def second(u: Tensor, g: Tensor, x: Tensor, alpha: float) -> tuple[Tensor, Tensor]:
        return torch.empty_like(x), torch.empty_like(x)


def _pull_value(backend: Any, arguments: Any, kept: Any, cotangents: Any, wanted: Any) -> tuple[Any, ...]:
    return _first(backend, *cotangents, *arguments), None


def _pull_first(backend: Any, arguments: Any, kept: Any, cotangents: Any, wanted: Any) -> tuple[Any, ...]:
    return *_second(backend, *cotangents, *arguments), None


_value = order("value", _pull_value)
_first = order("first", _pull_first)
_second = order("second", by_reference(reference.second))


def elu_second_order(x: Tensor, alpha: float = 1.0) -> Tensor:
    """y = x for x > 0, else alpha (exp(x) - 1), for any shape; differentiable to any order, the first two fused."""
    if not x.is_floating_point():
        raise ValueError(f"elu_second_order got x of dtype {x.dtype}; expected a floating dtype")
    if not alpha > 0:
        raise ValueError(f"elu_second_order got alpha={alpha}; expected a positive number")
    return _value(backend(x), x, alpha)


def backend(x: Tensor) -> Any:
    """The backend for x: a function for every order, with the signatures of the reference."""
    if x.device.type == "meta":
        return _Shapes
    return backend_for("elu_second_order", x, reference, _Native if _NATIVE else None)


def backends() -> list[Backend]:
    """The backends of this op: which is used on which device, and why not the others."""
    return op_backends("elu_second_order")
