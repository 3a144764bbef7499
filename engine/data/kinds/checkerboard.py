"""The embedded 2-D checkerboard."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from eblvm.engine.data.kinds import DataOptions

if TYPE_CHECKING:
    from eblvm.engine.data.dataset import Dataset


@dataclass(frozen=True)
class Checkerboard(DataOptions):
    kind = "checkerboard"

    def shape(self, images: bool) -> tuple[int, ...]:
        return (2,)

    def load(self, images: bool, threads: int = 1) -> Dataset:
        from eblvm.engine.data.datasets import checkerboard

        return checkerboard()
