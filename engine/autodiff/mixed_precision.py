"""Mixed precision: networks run under autocast, all else (log densities, residuals, reductions) stays as it is.

tf32 lets CUDA round the factors of fp32 products. fp16 has few exponents, and small cotangents vanish in it, so losses
are scaled (`grad_scaled`). Gradients are taken inside a step as well: a score is grad_v of a sum of energies, a lower
step's direction grad_phi of a divergence; each is unscaled before anything is made of it. The loss's backward sends a
cotangent through the score's own backward pass, divided by the score's scale on its way in. So with S on the loss and
sqrt(S) on inner gradients both passes run at sqrt(S), and their products, the parameters' gradients, at S.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map

from eblvm.engine.autodiff.convolution import convolve
from eblvm.engine.autodiff.derivatives import grad

PRECISIONS = ("fp32", "tf32", "bf16", "fp16")
HALVES = {"bf16": torch.bfloat16, "fp16": torch.float16}


def autocast(x: Tensor, precision: str) -> AbstractContextManager[Any]:
    """The context of a network's matrix products and convolutions on x's device."""
    if precision not in HALVES:
        return nullcontext()
    if x.device.type == "meta":
        return ShapesAutocast(HALVES[precision])
    return torch.autocast(x.device.type, HALVES[precision])


class ShapesAutocast(TorchFunctionMode):
    """Autocast of the meta device, which torch has none for: products and convolutions take 16-bit arguments."""

    CAST = (convolve, F.conv2d, F.linear, torch.conv2d, torch.matmul, torch.Tensor.matmul, torch.Tensor.__matmul__)

    def __init__(self, dtype: torch.dtype):
        super().__init__()
        self.dtype = dtype

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in self.CAST:
            args = [a.to(self.dtype) if isinstance(a, Tensor) and a.is_floating_point() else a for a in args]
        return func(*args, **(kwargs or {}))


def grad_scaled(fn: Callable[[Any], tuple[Tensor, Any]], x: Any, scale: Tensor | None) -> tuple[Any, Any]:
    """`grad` of fn, its backward pass run at `scale` times the size and the result divided by it."""
    if scale is None:
        return grad(fn, x)

    def scaled(y: Any) -> tuple[Tensor, Any]:
        value, aux = fn(y)
        return value * scale, aux

    gradient, aux = grad(scaled, x)
    return tree_map(lambda g: g / scale, gradient), aux
