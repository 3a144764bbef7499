"""scikit-learn's bundled digits: 1797 images of 8x8 in their own order, scaled to [0, 1]."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from eblvm.engine.data.sets.base import DataOptions

if TYPE_CHECKING:
    from eblvm.engine.data.dataset import Dataset

SIZES = (1400, 200, 197)  # of the splits


class Digits(DataOptions):
    kind = "digits"

    def shape(self, images: bool) -> tuple[int, ...]:
        return (1, 8, 8) if images else (64,)

    def load(self, images: bool, threads: int = 1) -> Dataset:
        from sklearn.datasets import load_digits  # slow to import, and no other data set needs it

        from eblvm.engine.data.dataset import Dataset

        bunch = load_digits()
        v, labels = torch.from_numpy(bunch.data / 16).float(), torch.from_numpy(bunch.target)
        train, valid, test = (v.view(-1, 1, 8, 8) if images else v).split(list(SIZES))
        train_labels, _, test_labels = labels.split(list(SIZES))
        return Dataset(train, valid, test, None if images else (8, 8), train_labels, test_labels)
