"""Frey face: 1965 faces of 28x20 in their original order, flat, scaled to [0, 1]."""

from __future__ import annotations

from typing import TYPE_CHECKING

from eblvm.engine.data.sets.base import FileData
from eblvm.engine.errors import UserError

if TYPE_CHECKING:
    from eblvm.engine.data.dataset import Dataset


class FreyFace(FileData):
    kind = "freyface"
    stored_shape = (1, 28, 20)
    held_out = (300, 265)  # as in the papers, after 1400 for training

    def shape(self, images: bool) -> tuple[int, ...]:
        return (560,)

    def load(self, images: bool, threads: int = 1) -> Dataset:
        from eblvm.engine.data.dataset import Dataset

        faces = super().load(images, threads)
        if len(faces.train) != 1400:
            total = sum(len(part) for part in faces[:3])
            raise UserError(f"{self.data} has {total} faces, expected Frey face's 1965; copy it again")
        train, valid, test = (part.flatten(1).double().div(255).float() for part in faces[:3])
        return Dataset(train, valid, test, (28, 20))
