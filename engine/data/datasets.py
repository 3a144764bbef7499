"""Data sets of points and small images, in memory as floats. Larger images are `images.py`."""

import torch
from torch import Tensor

from eblvm.engine.data import images
from eblvm.engine.data.dataset import Dataset
from eblvm.engine.data.sets.files import FreyFace
from eblvm.engine.data.toys import TOYS
from eblvm.engine.errors import UserError


def points(name: str, train: int = 60_000, valid: int = 10_000, test: int = 10_000) -> Dataset:
    """Points of an embedded 2-D set."""
    return _split(TOYS[name].points(train + valid + test), (train, valid, test), None)


def digits(flat: bool = True) -> Dataset:
    """1797 images of 8x8 in their own order, scaled to [0, 1]: 1400 train, 200 validation, 197 test."""
    from sklearn.datasets import load_digits  # slow to import, and no other recipe needs it

    bunch = load_digits()
    v, labels = torch.from_numpy(bunch.data / 16).float(), torch.from_numpy(bunch.target)
    dataset = _split(v if flat else v.view(-1, 1, 8, 8), (1400, 200, 197), (8, 8) if flat else None)
    return dataset._replace(train_labels=labels[:1400], test_labels=labels[1600:])


def freyface(options: FreyFace) -> Dataset:
    """1965 faces of 28x20 in their original order, flat, scaled to [0, 1]: 1400 train, 300 validation, 265 test."""
    faces = images.load(options)
    if len(faces.train) != 1400:
        total = sum(len(part) for part in faces[:3])
        raise UserError(f"{options.data} holds {total} faces, expected Frey face's 1965; copy it again")
    train, valid, test = (part.flatten(1).double().div(255).float() for part in faces[:3])
    return Dataset(train, valid, test, (28, 20))


def _split(v: Tensor, sizes: tuple[int, int, int], image_shape: tuple[int, int] | None) -> Dataset:
    train, valid, test = v.split(list(sizes))
    return Dataset(train, valid, test, image_shape)
