"""Image data sets of the recipes as uint8 tensors [n, C, S, S], from whatever `--data` names."""

import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import cast

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from eblvm.engine.data.contents import Contents, Pictures, Split
from eblvm.engine.data.dataset import Dataset, resized
from eblvm.engine.data.pictures.cache import cached
from eblvm.engine.data.pictures.framing import Framing, import_dali
from eblvm.engine.data.pictures.stream import PicturesOnDemand
from eblvm.engine.data.readers import read
from eblvm.engine.data.readers.folder import CELEBA_WIDTH
from eblvm.engine.data.sets.files import CelebA, FileData, ImageData, PictureData
from eblvm.engine.errors import UserError


def load(options: FileData) -> Dataset:
    """The images of a data set. Of a training set without a validation one the last 10 %, at most 1,000, validate."""
    path = path_of(options)
    return dataset_of(path, read(path), options)


def load_faces(options: CelebA, threads: int) -> Dataset:
    """CelebA from arrays, or from pictures that are cropped as its users do."""
    path = path_of(options)
    contents = read(path)
    if contents.pictures:
        cropped = contents._replace(crop_fraction=options.crop / CELEBA_WIDTH)
        return of_pictures(options, path, cropped.divided(), threads)
    return dataset_of(path, contents, options)


def path_of(options: FileData) -> Path:
    if options.data is None:
        raise UserError(f"recipe {options.kind!r} needs the data set; give --data PATH")
    return Path(options.data)


def of_pictures(
    options: PictureData,
    path: Path,
    contents: Contents,
    threads: int,
    shown: Callable[[Contents], Contents] = lambda made: made,
) -> Dataset:
    """Prepared once and cached; what is streamed is not, only what validates and tests is then. `shown` makes of what
    was prepared what the model sees."""
    size = options.pixels

    def prepared(contents: Contents) -> Contents:
        say = partial(print, file=sys.stderr)
        return shown(cached(path, contents, size, options.cache, threads, say).contents())

    if options.input == "memory":
        return dataset_of(path, prepared(contents), options)
    if options.input == "dali":
        import_dali()
    train = contents.splits["train"].images
    assert isinstance(train, Pictures)
    splits = prepared(contents._replace(splits={name: contents.splits[name] for name in ("valid", "test")})).splits
    framing = Framing(size, contents.crop_fraction)
    streamed = PicturesOnDemand(train.files, framing, options.input, options.stored_shape[0])
    valid, test = (torch.from_numpy(pixels(splits[name])) for name in ("valid", "test"))
    return Dataset(cast(Tensor, streamed), valid, test)


def dataset_of(path: Path, contents: Contents, options: FileData) -> Dataset:
    """Arrays of images of the data set's shape; MNIST's 28 pixels get a frame of 2."""
    if options.input != "memory":
        raise UserError(f"--input {options.input} decodes pictures, {path} is {contents.kind}; remove --input")
    contents = contents.divided(options.held_out)
    if absent := [name for name in ("train", "valid", "test") if name not in contents.splits]:
        raise UserError(f"{path} has no {' and no '.join(absent)} images, recipe {options.kind!r} needs them")
    shape = (3, options.pixels, options.pixels) if isinstance(options, CelebA) else options.stored_shape
    parts, labels = [], {}
    for name, split in contents.splits.items():
        images = pixels(split)
        if images.shape[1:] != shape:
            got, expected = ("x".join(map(str, s)) for s in (images.shape[1:], shape))
            raise UserError(
                f"{path} ({contents.kind}) has images of {got}, expected {expected} of recipe {options.kind!r}; "
                "give the recipe's own data set"
            )
        parts.append(framed(torch.from_numpy(images), options))
        if split.labels is not None and split.labels.ndim == 1:
            labels[name] = torch.from_numpy(np.ascontiguousarray(split.labels))
    train, valid, test = parts
    return Dataset(train, valid, test, train_labels=labels.get("train"), test_labels=labels.get("test"))


def framed(x: Tensor, options: FileData) -> Tensor:
    """Images with the data set's frame around them, resized if asked."""
    if not isinstance(options, ImageData):
        return x
    return resized(F.pad(x, [options.padding] * 4) if options.padding else x, options.size)


def pixels(split: Split) -> np.ndarray:
    assert isinstance(split.images, np.ndarray)
    return split.images if split.images.flags.writeable else split.images.copy()
