"""A row of suite `kernels`: an op and its reference on the same inputs."""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from eblvm.kernels import philox
from eblvm.kernels.philox import Key

Run = Callable[[], Any]


class Row(NamedTuple):
    """`make(dtype)` gives the op and its reference on the same inputs: compared in float64, timed in float32."""

    op: str
    labels: str
    make: Callable[[torch.dtype], tuple[Run, Run]]
    tolerance: float = 1e-9  # of the largest difference, relative to the largest entry


def normal(index: int, *shape: int, dtype: torch.dtype) -> Tensor:
    return philox.normal(Key(11, index), 0, shape[0], shape[1:], dtype=dtype, device=torch.get_default_device())
