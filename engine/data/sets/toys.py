"""The embedded sets of points in the plane; `engine/data/toys.py` says what each one is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from eblvm.engine.data.sets.base import DataOptions

if TYPE_CHECKING:
    from eblvm.engine.data.dataset import Dataset


@dataclass(frozen=True)
class Points(DataOptions):
    mean: ClassVar[float] = 0.0  # of the coordinates, both taken together: networks see points centred and scaled
    std: ClassVar[float] = 1.0

    def shape(self, images: bool) -> tuple[int, ...]:
        return (2,)

    def load(self, images: bool, threads: int = 1) -> Dataset:
        from eblvm.engine.data.datasets import points

        return points(self.kind)


@dataclass(frozen=True)
class Checkerboard(Points):
    kind = "checkerboard"
    mean, std = 0.5, 0.29


@dataclass(frozen=True)
class Checkerboard4(Points):
    kind = "checkerboard4"
    mean, std = 0.0, 2.31


@dataclass(frozen=True)
class Moons(Points):
    kind = "moons"
    mean, std = 0.0, 1.08


@dataclass(frozen=True)
class SwissRoll(Points):
    kind = "swissroll"
    mean, std = 0.27, 1.95


@dataclass(frozen=True)
class Circle(Points):
    kind = "circle"
    mean, std = 0.0, 1.42


@dataclass(frozen=True)
class Blobs(Points):
    kind = "blobs"
    mean, std = 0.0, 1.47


@dataclass(frozen=True)
class EightGaussians(Points):
    kind = "eightgaussians"
    mean, std = 0.0, 1.43
