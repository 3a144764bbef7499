"""Mixed precision: networks run under autocast, all else (log densities, residuals, reductions) keeps its precision.

tf32 lets CUDA round the factors of fp32 products. fp16 has few exponents, and small cotangents vanish in it, so losses
are scaled (`scale` of `grad`). A step computes inner gradients as well: a score is grad_v of a sum of energies, a lower
step's direction is grad_phi of a divergence; each is unscaled before it is used. The loss's backward sends a cotangent
through the score's own backward pass, divided by the score's scale on its way in. So with S on the loss and sqrt(S) on
inner gradients both passes run at sqrt(S), and their products, the parameters' gradients, at S.

The scale is part of the training state: smaller after an overflow, larger after PATIENCE steps without one.
"""

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

from eblvm.engine.autodiff.convolution import convolve

HALVES = {"bf16": torch.bfloat16, "fp16": torch.float16}
# Even powers of 2: a scale and its root are exact. It may be below 1: MDSM's gradients can exceed fp16 by themselves.
START, LARGEST, SMALLEST, FACTOR, PATIENCE = 2.0**16, 2.0**24, 2.0**-24, 4.0, 1000


def autocast(x: Tensor, precision: str) -> AbstractContextManager[Any]:
    """Return the context of a network's matrix products and convolutions on x's device."""
    if precision not in HALVES:
        return nullcontext()
    if x.device.type == "meta":
        return ShapesAutocast(HALVES[precision])
    return torch.autocast(x.device.type, HALVES[precision])


def full_precision(x: Tensor) -> AbstractContextManager[Any]:
    """Return a context inside `autocast` in which products have their arguments' own precision again."""
    if x.is_meta:
        return torch._C.DisableTorchFunction()
    if torch.is_autocast_enabled(x.device.type):
        return torch.autocast(x.device.type, enabled=False)
    return nullcontext()


class ShapesAutocast(TorchFunctionMode):
    """Autocast for the meta device, which torch lacks: products and convolutions get 16-bit arguments."""

    CAST = (
        convolve, F.conv2d, F.conv_transpose2d, F.linear, torch.conv2d, torch.matmul, torch.Tensor.matmul,
        torch.Tensor.__matmul__,
    )  # fmt: skip

    def __init__(self, dtype: torch.dtype):
        super().__init__()
        self.dtype = dtype

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in self.CAST:
            args = [a.to(self.dtype) if isinstance(a, Tensor) and a.is_floating_point() else a for a in args]
        return func(*args, **(kwargs or {}))


def initial_scale(like: Tensor) -> dict[str, Tensor]:
    """Return the loss scale at the start of a run in fp16: its value, and the finite steps since it last changed."""
    return {"value": torch.full_like(like, START), "clean": torch.zeros_like(like)}


def next_scale(scale: dict[str, Tensor], finite: Tensor) -> dict[str, Tensor]:
    """Return a smaller scale after an overflow, a larger one after PATIENCE finite steps; `finite` is on the device."""
    value, clean = scale["value"], scale["clean"] + 1
    grow = clean >= PATIENCE
    grown = torch.where(grow, (value * FACTOR).clamp(max=LARGEST), value)
    return {
        "value": torch.where(finite, grown, (value / FACTOR).clamp(min=SMALLEST)),
        "clean": torch.where(finite & ~grow, clean, torch.zeros_like(clean)),
    }
