"""What a case is: launches of an op's kernels, and what its reference says."""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only

from tests.kernels.grbm_cases import HALF_TOLERANCE, TOLERANCE

CAPABILITIES = (80, 90)


class Numbers(NamedTuple):
    """A type, the precision of its products, and the largest error that they may make."""

    name: str
    dtype: torch.dtype
    precision: str
    tolerance: float


IEEE = Numbers("fp32 ieee", torch.float32, "ieee", TOLERANCE[torch.float32])
TF32 = Numbers("fp32 tf32", torch.float32, "tf32", 5e-3)  # factors of 11 bits
BF16X3 = Numbers("fp32 bf16x3", torch.float32, "bf16x3", TOLERANCE[torch.float32])
BF16 = Numbers("bf16", torch.bfloat16, "ieee", HALF_TOLERANCE[torch.bfloat16])
FP64 = Numbers("fp64", torch.float64, "ieee", TOLERANCE[torch.float64])
OF_PRODUCTS = (IEEE, TF32, BF16X3, BF16, FP64)
POINTWISE = (IEEE, BF16, FP64)


class Case(NamedTuple):
    """`launch` and `expected` make trees of tensors from a tree of inputs, `expected` from those in float64."""

    part: str  # of an op
    name: str
    capability: int
    numbers: Numbers
    given: Callable[[], Any]
    launch: Callable[[Any], Any]
    expected: Callable[[Any], Any]
    split: int = 0  # parts of a launch; 0 leaves it to the model
    fits: bool = True  # into registers, else the kernels after torch's products
    tolerance: float | None = None  # another than that of its numbers

    @property
    def allowed(self) -> float:
        return self.numbers.tolerance if self.tolerance is None else self.tolerance


def doubled(values: Any) -> Any:
    """Return a tree with its floating tensors in float64."""
    return tree_map_only(Tensor, lambda t: t.double() if t.is_floating_point() else t, values)
