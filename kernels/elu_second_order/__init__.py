"""ELU with a fused forward, backward and double backward: the activation of the deep energy.

A score is a first derivative of the energy and its loss is differentiated again, so an activation meets all three.
Contiguous and channels_last tensors keep their memory order. README.md has the formulas.
"""

from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from eblvm.kernels.dispatch import TRITON, Backend, native_status, op_backends
from eblvm.kernels.elu_second_order import reference

__all__ = ["backend", "backends", "elu_second_order"]

_NATIVE, _ = native_status("elu_second_order")


def elu_second_order(x: Tensor, alpha: float = 1.0) -> Tensor:
    """y = x for x > 0, else alpha (exp(x) - 1), for any shape; differentiable to any order, the first two fused."""
    if not x.is_floating_point():
        raise ValueError(f"elu_second_order got x of dtype {x.dtype}; expected a floating dtype")
    if not alpha > 0:
        raise ValueError(f"elu_second_order got alpha={alpha}; expected a positive number")
    return _Value.apply(backend(x), alpha, x)


def backends() -> list[Backend]:
    """Which backend serves on which device, and why not the others."""
    return op_backends("elu_second_order")


class _Native:
    value = staticmethod(torch.ops.eblvm.elu_second_order) if _NATIVE else None
    first = staticmethod(torch.ops.eblvm.elu_second_order_first) if _NATIVE else None
    second = staticmethod(torch.ops.eblvm.elu_second_order_second) if _NATIVE else None


def _triton() -> ModuleType:
    from eblvm.kernels.elu_second_order import triton

    return triton


def backend(x: Tensor) -> Any:
    """What serves x: its `value`, `first` and `second`, with the signatures of reference.py."""
    if torch.compiler.is_compiling():
        return reference
    if _NATIVE and x.device.type == "cpu" and x.dtype in (torch.float32, torch.float64):
        return _Native
    if TRITON and x.device.type == "cuda":
        return _triton()
    return reference


class _Value(torch.autograd.Function):
    """y; its backward is `_First`, whose backward is `_Second`, and beyond that the reference is differentiated."""

    @staticmethod
    def forward(backend: Any, alpha: float, x: Tensor) -> Tensor:
        return backend.value(x, alpha)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        ctx.backend, ctx.alpha, x = inputs
        ctx.save_for_backward(x)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Any, ...]:
        return None, None, _First.apply(ctx.backend, ctx.alpha, g, *ctx.saved_tensors)

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], backend: Any, alpha: float, x: Tensor) -> tuple[Any, Any]:
        return _Value.apply(backend, alpha, x), in_dims[2]


class _First(torch.autograd.Function):
    @staticmethod
    def forward(backend: Any, alpha: float, g: Tensor, x: Tensor) -> Tensor:
        return backend.first(g, x, alpha)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        ctx.backend, ctx.alpha, *tensors = inputs
        ctx.save_for_backward(*tensors)

    @staticmethod
    def backward(ctx: Any, u: Tensor) -> tuple[Any, ...]:
        return None, None, *_Second.apply(ctx.backend, ctx.alpha, u, *ctx.saved_tensors)

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], backend: Any, alpha: float, *tensors: Tensor) -> tuple[Any, Any]:
        return _First.apply(backend, alpha, *_aligned(info, in_dims[2:], tensors)), 0


class _Second(torch.autograd.Function):
    @staticmethod
    def forward(backend: Any, alpha: float, u: Tensor, g: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        return backend.second(u, g, x, alpha)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        _, ctx.alpha, *tensors = inputs
        ctx.save_for_backward(*tensors)

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor) -> tuple[Any, ...]:
        second: Any = reference.second
        pull: Any = torch.func.vjp(lambda *t: second(*t, ctx.alpha), *ctx.saved_tensors)[1]
        return None, None, *pull(cotangents)

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], backend: Any, alpha: float, *tensors: Tensor) -> tuple[Any, Any]:
        return _Second.apply(backend, alpha, *_aligned(info, in_dims[2:], tensors)), (0, 0)


def _aligned(info: Any, in_dims: tuple[Any, ...], tensors: tuple[Tensor, ...]) -> list[Tensor]:
    return [
        t.expand(info.batch_size, *t.shape) if dim is None else t.movedim(dim, 0)
        for t, dim in zip(tensors, in_dims, strict=True)
    ]
