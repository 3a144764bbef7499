"""Data of the user's own, given in Python."""

from __future__ import annotations

from typing import TYPE_CHECKING

from eblvm.engine.data.sets.base import DataOptions
from eblvm.engine.errors import UserError
from eblvm.engine.options import option

if TYPE_CHECKING:
    from eblvm.engine.data.dataset import Dataset


class CustomData(DataOptions):
    kind = "custom"

    flip: bool = option(False, "mirror images at random")  # type: ignore[misc]
    dequantize: bool = option(False, "train on (x + u)/256 with u uniform, in place of x/255")  # type: ignore[misc]

    def load(self, images: bool, threads: int = 1) -> Dataset:
        raise UserError("this run's data were given in Python; give them again: see docs/models.md")
