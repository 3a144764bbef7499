"""The result of a reader: the splits of a data set, as arrays in memory or as names of pictures still to be decoded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from eblvm.engine.data.members import Member
from eblvm.engine.errors import UserError, printable
from eblvm.kernels import philox

PictureFile = Path | Member
DIVIDE = 3  # the stream of Purpose.DATA that shuffles before images are divided


@dataclass(frozen=True)
class Pictures:
    """Files of one picture each, of any size: on their own, or within archives."""

    files: Sequence[PictureFile]

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, places: slice) -> Pictures:
        return Pictures(self.files[places])


class Split(NamedTuple):
    images: np.ndarray | Pictures  # uint8 [n, C, H, W]
    labels: np.ndarray | None = None  # int64 [n], or attributes int8 [n, A]

    def array(self) -> np.ndarray:
        """The images of a split of arrays, writable as torch wants them."""
        assert isinstance(self.images, np.ndarray)
        return self.images if self.images.flags.writeable else self.images.copy()

    def part(self, first: int, end: int) -> Split:
        return Split(self.images[first:end], None if self.labels is None else self.labels[first:end])

    def classes(self) -> torch.Tensor | None:
        """The class of every image; attributes are none."""
        if self.labels is None or self.labels.ndim != 1:
            return None
        return torch.from_numpy(np.ascontiguousarray(self.labels))

    def shuffled(self, seed: int) -> Split:
        """In a random order, in which every stretch has each class in proportion. A mapped store stays as it is."""
        if isinstance(self.images, np.memmap):
            return self
        purpose = philox.purpose(philox.Purpose.DATA, DIVIDE)
        order = philox.permutation(philox.Key(seed, 0), purpose, len(self.images)).numpy()
        if self.labels is not None and self.labels.ndim == 1:
            by_class = np.argsort(self.labels[order], kind="stable")
            _, first, count = np.unique(self.labels[order][by_class], return_index=True, return_counts=True)
            place = (np.arange(len(order)) - np.repeat(first, count) + 0.5) / np.repeat(count, count)  # in its class
            order = order[by_class[np.argsort(place, kind="stable")]]
        images = self.images
        taken = Pictures([images.files[i] for i in order]) if isinstance(images, Pictures) else images[order]
        return Split(taken, None if self.labels is None else self.labels[order])


class Contents(NamedTuple):
    """`splits` has train, valid and test in this order, those that the files tell apart; otherwise 'all'."""

    kind: str  # in words
    splits: dict[str, Split]
    published: bool | None = None  # whether the digests are those of the published files; None: not known
    attributes: tuple[str, ...] = ()  # names of the columns of the labels
    crop_fraction: float | None = None  # of a picture's width that the centre crop keeps; None: the largest square
    where: str = "the data set"  # the path that it was read from, for messages
    classes: tuple[str, ...] = ()  # names of the labels

    def divided(self, sizes: tuple[int, int] | None = None, seed: int | None = None) -> Contents:
        """Divide into train, valid and test. `sizes` are those of valid and test where one set has all
        images and is larger; a caller that gives them checks the number of images. `seed` shuffles one set of all
        images first.

        Otherwise 5 % each at its end (at least one); of a training set without a valid one the last 10 %, at least one
        and at most 1000. A set that leaves one of them empty is refused.
        """
        splits = dict(self.splits)
        if "all" in splits:
            whole = splits.pop("all")
            whole = whole if seed is None else whole.shuffled(seed)
            n, held = len(whole.images), max(1, len(whole.images) // 20)
            valid, test = sizes if sizes and n > sum(sizes) else (held, held)
            if n <= valid + test:
                needs = f"{valid + test + 1}: {valid} to validate, {test} to test and one to train"
                raise UserError(f"{printable(self.where)} has {n} images, expected at least {needs}; give a larger set")
            bounds = (0, n - valid - test, n - test, n)
            splits = {name: whole.part(*bounds[i : i + 2]) for i, name in enumerate(("train", "valid", "test"))}
        elif "valid" not in splits and "train" in splits:
            train = splits["train"]
            if (n := len(train.images)) < 2:
                has = f"{printable(self.where)} has {n} training image and none to validate"
                raise UserError(f"{has}, expected at least 2; give a larger set")
            kept = n - min(1000, max(1, n // 10))
            splits |= {"train": train.part(0, kept), "valid": train.part(kept, n)}
        return self._replace(splits={name: splits[name] for name in ("train", "valid", "test") if name in splits})

    @property
    def total(self) -> int:
        """Images of all splits."""
        return sum(len(split.images) for split in self.splits.values())

    @property
    def pictures(self) -> bool:
        return any(isinstance(split.images, Pictures) for split in self.splits.values())
