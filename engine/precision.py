"""Mixed precision: networks run under autocast, all else (log densities, residuals, reductions) stays as it is.

tf32 lets CUDA round the factors of fp32 products. fp16 has few exponents: small cotangents vanish in it. So losses are
scaled, and with them the gradients that are taken inside a step: a score is grad_v of a sum of energies, a lower step's
direction is grad_phi of a divergence, and each is unscaled before anything is made of it. See `Scale`.
"""

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

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

    CAST = (F.conv2d, F.linear, torch.conv2d, torch.matmul, torch.Tensor.matmul, torch.Tensor.__matmul__)

    def __init__(self, dtype: torch.dtype):
        super().__init__()
        self.dtype = dtype

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in self.CAST:
            args = [a.to(self.dtype) if isinstance(a, Tensor) and a.is_floating_point() else a for a in args]
        return func(*args, **(kwargs or {}))


def set_products(precision: str) -> None:
    """Let CUDA round the factors of fp32 products to tf32, or forbid it: torch allows convolutions to by default."""
    kind = "tf32" if precision == "tf32" else "ieee"
    torch.backends.cuda.matmul.fp32_precision = kind
    torch.backends.cudnn.conv.fp32_precision = kind
