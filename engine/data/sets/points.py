"""The contract of the sets of points in the plane, each with its log density; a set or a family of them is a file.

The checkerboards have no scale but their cells: noise of 0.05 suits the first, 0.3 the second. The others lie around
the origin, 0.8 to 2 in standard deviation, and any two branches are at least 0.75 apart: noise of 0.05 to 0.3 keeps
them apart. Thickness is the standard deviation across a curve. The mean of the log density is the best log-likelihood
that a model can have.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, ClassVar

import torch

from eblvm.engine.data.sets.base import DataOptions
from eblvm.kernels import philox

if TYPE_CHECKING:
    from eblvm.engine.data.dataset import Dataset

SEED = 2020  # of the data itself: every run sees the same points
SIZES = (60_000, 10_000, 10_000)  # of the splits


class Points(DataOptions):
    mean: ClassVar[float] = 0.0  # of the coordinates, both taken together: networks see points centred and scaled
    std: ClassVar[float] = 1.0

    def points(self, n: int, first: int = 0) -> torch.Tensor:
        """Points first .. first + n - 1, [n, 2]."""
        raise NotImplementedError

    def log_density(self, v: torch.Tensor) -> torch.Tensor:
        """log p(v) [n] of any points v [n, 2]."""
        raise NotImplementedError

    def shape(self, images: bool) -> tuple[int, ...]:
        return (2,)

    def load(self, images: bool, threads: int = 1) -> Dataset:
        from eblvm.engine.data.dataset import Dataset

        train, valid, test = self.points(sum(SIZES)).split(list(SIZES))
        return Dataset(train, valid, test)


def uniform(stream: int, n: int, first: int, width: int) -> torch.Tensor:
    """Uniform numbers [n, width] of a set's own stream of noise."""
    purpose = philox.purpose(philox.Purpose.DATA, stream)
    return philox.uniform(philox.Key(SEED, 0), purpose, n, (width,), first=first)


def uniform_log_density(inside: torch.Tensor, area: float, v: torch.Tensor) -> torch.Tensor:
    """-log area where `inside`, -inf elsewhere."""
    return torch.where(inside, v.new_tensor(-math.log(area)), v.new_tensor(-math.inf))
