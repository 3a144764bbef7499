"""fp16's loss scale: a part of the training state, smaller after an overflow, larger after a while without one.

`engine/autodiff/mixed_precision.py` says which gradients it scales.
"""

import torch
from torch import Tensor

# Even powers of 2: a scale and its root are exact. MDSM's gradients can exceed fp16 by themselves: it may be below 1.
START, LARGEST, SMALLEST, FACTOR, PATIENCE = 2.0**16, 2.0**24, 2.0**-24, 4.0, 1000


def initial_scale(precision: str, like: Tensor) -> dict[str, Tensor]:
    """The loss scale of a state: its value, and the finite steps since it last changed; nothing but for fp16."""
    if precision != "fp16":
        return {}
    return {"value": torch.full_like(like, START), "clean": torch.zeros_like(like)}


def next_scale(scale: dict[str, Tensor], finite: Tensor) -> dict[str, Tensor]:
    """Smaller after a step that overflowed, larger after PATIENCE that did not; `finite` is a bool on the device."""
    value, clean = scale["value"], scale["clean"] + 1
    grow = clean >= PATIENCE
    grown = torch.where(grow, (value * FACTOR).clamp(max=LARGEST), value)
    return {
        "value": torch.where(finite, grown, (value / FACTOR).clamp(min=SMALLEST)),
        "clean": torch.where(finite & ~grow, clean, torch.zeros_like(clean)),
    }
