"""Mixed precision: networks run under autocast, all else (log densities, residuals, reductions) stays as it is."""

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor

PRECISIONS = ("fp32", "bf16")


def autocast(x: Tensor, precision: str) -> AbstractContextManager[Any]:
    """The context of a network's matrix products and convolutions on x's device."""
    if precision == "fp32" or x.device.type == "meta":  # torch has no autocast of shapes
        return nullcontext()
    return torch.autocast(x.device.type, torch.bfloat16)
