"""The contract of a data set: its options, the shape of its samples, and how it is loaded."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from eblvm.engine.options import Options

if TYPE_CHECKING:
    from eblvm.engine.data.dataset import Dataset


@dataclass(frozen=True)
class DataOptions(Options):
    """The contract. `data` and its kin are class attributes here and options where a data set reads them."""

    group = "data"
    data: ClassVar[str | None] = None
    input: ClassVar[str] = "memory"
    flip: ClassVar[bool] = False
    dequantize: ClassVar[bool] = False

    def shape(self, images: bool) -> tuple[int, ...]:
        """The shape of a sample, known without the data: [C, S, S] for a model that takes images, else [D]."""
        raise NotImplementedError

    def load(self, images: bool, threads: int = 1) -> Dataset:
        """The data set in memory; of pictures to be streamed their names."""
        raise NotImplementedError
