"""Image data sets of the recipes as uint8 tensors [n, C, S, S], from whatever `--data` names."""

import sys
from pathlib import Path
from typing import cast

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from eblvm.engine.config import Config
from eblvm.engine.data.cache import cached
from eblvm.engine.data.contents import Contents, Pictures, Split
from eblvm.engine.data.dataset import Dataset
from eblvm.engine.data.framing import Framing, import_dali
from eblvm.engine.data.readers import read
from eblvm.engine.data.readers.folder import CELEBA_SHARE
from eblvm.engine.data.resizing import resized
from eblvm.engine.data.stream import PicturesOnDemand
from eblvm.engine.errors import UserError, unknown

SHAPES = {"freyface": (1, 28, 20), "mnist": (1, 28, 28), "cifar10": (3, 32, 32), "svhn": (3, 32, 32)}
FREY_HELD = (300, 265)  # the papers' validation and test faces, after 1400 for training


def load(config: Config) -> Dataset:
    """The images of a recipe. Of a training set without a validation one the last 10 %, at most 1,000, validate."""
    if config.data is None:
        raise UserError(f"recipe {config.recipe!r} needs the data set; give --data PATH")
    path = Path(config.data)
    if config.recipe.startswith("celeba"):
        contents, size = read(path), config.size or int(config.recipe.removeprefix("celeba"))
        if contents.pictures:
            return of_pictures(config, path, contents._replace(share=CELEBA_SHARE).divided(), size)
        return dataset_of(path, contents, (3, size, size), config)
    if config.recipe not in SHAPES:
        raise unknown("recipe", config.recipe, ["checkerboard", "digits", *SHAPES, "celeba32", "celeba64", "celeba128"])
    return dataset_of(path, read(path), SHAPES[config.recipe], config)


def of_pictures(config: Config, path: Path, contents: Contents, size: int) -> Dataset:
    """Prepared once and cached; with `--input dali` only what validates and tests is, and training is streamed."""

    def say(sentence: str) -> None:
        print(sentence, file=sys.stderr)

    if config.input != "dali":
        prepared = cached(path, contents, size, config.cache, config.threads, say)
        return dataset_of(path, prepared.contents(), (3, size, size), config)
    import_dali()
    train = contents.splits["train"].images
    assert isinstance(train, Pictures)
    held = contents._replace(splits={name: contents.splits[name] for name in ("valid", "test")})
    splits = cached(path, held, size, config.cache, config.threads, say).contents().splits
    streamed = PicturesOnDemand(train.paths, Framing(size, contents.share))
    valid, test = (torch.from_numpy(pixels(splits[name])) for name in ("valid", "test"))
    return Dataset(cast(Tensor, streamed), valid, test)


def dataset_of(path: Path, contents: Contents, shape: tuple[int, ...], config: Config) -> Dataset:
    """Arrays of images of `shape` as a data set; MNIST's 28 pixels get a frame of 2."""
    if config.input == "dali":
        raise UserError(f"--input dali decodes pictures, {path} is {contents.kind}; leave --input out")
    contents = contents.divided(FREY_HELD if config.recipe == "freyface" else None)
    if absent := [name for name in ("train", "valid", "test") if name not in contents.splits]:
        raise UserError(f"{path} has no {' and no '.join(absent)} images, recipe {config.recipe!r} needs them")
    parts, labels = [], {}
    for name, split in contents.splits.items():
        images = pixels(split)
        if images.shape[1:] != shape:
            got, expected = ("x".join(map(str, s)) for s in (images.shape[1:], shape))
            raise UserError(
                f"{path} ({contents.kind}) has images of {got}, expected {expected} of recipe {config.recipe!r}; "
                "give the recipe's own data set"
            )
        x = torch.from_numpy(images)
        parts.append(resized(F.pad(x, (2, 2, 2, 2)) if shape[1:] == (28, 28) else x, config.size))
        if split.labels is not None and split.labels.ndim == 1:
            labels[name] = torch.from_numpy(np.ascontiguousarray(split.labels))
    train, valid, test = parts
    return Dataset(train, valid, test, train_labels=labels.get("train"), test_labels=labels.get("test"))


def pixels(split: Split) -> np.ndarray:
    assert isinstance(split.images, np.ndarray)
    return split.images if split.images.flags.writeable else split.images.copy()
