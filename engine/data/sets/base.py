"""The contract of a data set, and what those that are read from files have in common."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, cast

import torch

from eblvm.engine.data.contents import Contents, Pictures
from eblvm.engine.errors import UserError
from eblvm.engine.options import Options, option

if TYPE_CHECKING:
    from eblvm.engine.data.dataset import Dataset


class DataOptions(Options):
    """The contract. `data` and its kin are class attributes here and options where a data set reads them."""

    group = "data"
    data: ClassVar[str | None] = None
    input: ClassVar[str] = "memory"
    flip: ClassVar[bool] = False
    dequantize: ClassVar[bool] = False
    chain_start: ClassVar[str] = "uniform"  # of Langevin chains where no --start is given: over the range of the data

    def shape(self, images: bool) -> tuple[int, ...]:
        """The shape of a sample, known without the data: [C, S, S] for a model that takes images, else [D]."""
        raise NotImplementedError

    def load(self, images: bool, threads: int = 1) -> Dataset:
        """The data set in memory; of pictures to be streamed their names."""
        raise NotImplementedError


class FileData(DataOptions):
    """Images of one shape, from a file or folder that is named by --data."""

    stored_shape: ClassVar[tuple[int, int, int]] = (3, 32, 32)  # of an image in the published files
    held_out: ClassVar[tuple[int, int] | None] = None  # validation and test images at the end of one set of all

    data: str | None = option(None, "path of the data set", mathematical=False)  # type: ignore[misc]

    @property
    def path(self) -> Path:
        if self.data is None:
            raise UserError(f"recipe {self.kind!r} needs the data set; give --data PATH")
        return Path(self.data)

    @property
    def array_shape(self) -> tuple[int, int, int]:
        """Of an image where --data has arrays."""
        return self.stored_shape

    def framed(self, x: torch.Tensor) -> torch.Tensor:
        """Images [n, C, H, W] as the model sees them."""
        return x

    def load(self, images: bool, threads: int = 1) -> Dataset:
        """Arrays of images; of a training set without a validation one the last 10 %, at most 1,000, validate."""
        from eblvm.engine.data.readers import read

        return self.dataset(read(self.path))

    def dataset(self, contents: Contents) -> Dataset:
        """Arrays of images as uint8 tensors."""
        from eblvm.engine.data.dataset import Dataset

        if self.input != "memory":
            raise UserError(f"--input {self.input} decodes pictures, {self.path} is {contents.kind}; remove --input")
        contents = contents.divided(self.held_out)
        if absent := [name for name in ("train", "valid", "test") if name not in contents.splits]:
            raise UserError(f"{self.path} has no {' and no '.join(absent)} images, recipe {self.kind!r} needs them")
        labels, parts = [contents.splits[name].classes() for name in ("train", "test")], []
        for split in contents.splits.values():
            images = split.array()
            if images.shape[1:] != self.array_shape:
                got, expected = ("x".join(map(str, s)) for s in (images.shape[1:], self.array_shape))
                fitting = f"{expected} of recipe {self.kind!r}; give the recipe's own data set"
                raise UserError(f"{self.path} ({contents.kind}) has images of {got}, expected {fitting}")
            parts.append(self.framed(torch.from_numpy(images)))
        train, valid, test = parts
        return Dataset(train, valid, test, train_labels=labels[0], test_labels=labels[1])


class ImageData(FileData):
    """The same, framed, resized, mirrored or dequantised."""

    chain_start = "normal"  # 1/2 + N(0, 1), as published
    padding: ClassVar[int] = 0  # pixels around an image, so that it can be halved often enough

    size: int | None = option(
        None, "resize images to this many pixels; none: the data set's own size", low=1, high=4096
    )
    flip: bool = option(False, "mirror images at random")  # type: ignore[misc]
    dequantize: bool = option(False, "train on (x + u)/256 with u uniform, in place of x/255")  # type: ignore[misc]

    @property
    def pixels(self) -> int:
        """Of a side of an image as the model sees it."""
        return self.size or self.stored_shape[1] + 2 * self.padding

    def shape(self, images: bool) -> tuple[int, ...]:
        return (self.stored_shape[0], self.pixels, self.pixels)

    def framed(self, x: torch.Tensor) -> torch.Tensor:
        """Images with `padding` around them, resized if asked."""
        from eblvm.engine.data.dataset import resized

        return resized(torch.nn.functional.pad(x, [self.padding] * 4) if self.padding else x, self.size)


class PictureData(ImageData):
    """From pictures of any size: prepared once, or decoded anew by every step that sees them."""

    input: str = option(  # type: ignore[misc]
        "memory",
        "a store in memory, or pictures decoded for each step: by Pillow, or ahead of it by DALI",
        choices=("memory", "pillow", "dali"),
    )
    split_seed: ClassVar[int | None] = None  # shuffles images that come without splits, before they are divided
    cache: str | None = option(
        None, "folder of the stores made from pictures; none: $EBLVM_CACHE, or the user's cache", mathematical=False
    )

    def cropped(self, contents: Contents) -> Contents:
        """Pictures with the fraction of their width that is kept."""
        return contents

    def squares(self, contents: Contents) -> Contents:
        """Arrays, given or made from pictures, at the size and with the channels that the model sees."""
        return contents

    def load(self, images: bool, threads: int = 1) -> Dataset:
        from eblvm.engine.data.readers import read

        contents = read(self.path).divided(seed=self.split_seed)
        if contents.pictures:
            return self.of_pictures(self.cropped(contents), threads)
        return self.dataset(self.squares(contents))

    def of_pictures(self, contents: Contents, threads: int) -> Dataset:
        """Pictures prepared once and cached; of streamed ones only those that validate and test."""
        from eblvm.engine.data.dataset import Dataset
        from eblvm.engine.data.pictures.cache import cached
        from eblvm.engine.data.pictures.framing import Framing, import_dali
        from eblvm.engine.data.pictures.stream import PicturesOnDemand

        def prepared(contents: Contents) -> Contents:
            return self.squares(cached(self.path, contents, self.pixels, self.cache, threads).contents())

        if self.input == "memory":
            return self.dataset(prepared(contents))
        if self.input == "dali":
            import_dali()
        splits = prepared(contents._replace(splits={k: contents.splits[k] for k in ("valid", "test")})).splits
        train = contents.splits["train"]
        files = cast(Pictures, train.images).files
        framing = Framing(self.pixels, contents.crop_fraction)
        streamed = PicturesOnDemand(files, framing, self.input, self.stored_shape[0])
        valid, test = (torch.from_numpy(splits[name].array()) for name in ("valid", "test"))
        labels = [train.classes(), splits["test"].classes()]
        given = cast(torch.Tensor, streamed), valid, test
        return Dataset(*given, train_labels=labels[0], test_labels=labels[1])
