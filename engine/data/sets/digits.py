"""scikit-learn's bundled 8x8 digits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from eblvm.engine.data.sets.base import DataOptions

if TYPE_CHECKING:
    from eblvm.engine.data.dataset import Dataset


@dataclass(frozen=True)
class Digits(DataOptions):
    kind = "digits"

    def shape(self, images: bool) -> tuple[int, ...]:
        return (1, 8, 8) if images else (64,)

    def load(self, images: bool, threads: int = 1) -> Dataset:
        from eblvm.engine.data.datasets import digits

        return digits(flat=not images)
