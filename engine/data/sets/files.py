"""Data sets that are read from files: Frey face, MNIST, CIFAR-10, SVHN, CelebA."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from eblvm.engine.data.sets.base import DataOptions
from eblvm.engine.options import option

if TYPE_CHECKING:
    from eblvm.engine.data.dataset import Dataset


@dataclass(frozen=True)
class FileData(DataOptions):
    """Images of one shape, from a file or folder that is named by --data."""

    stored_shape: ClassVar[tuple[int, int, int]] = (3, 32, 32)  # of an image in the published files
    held_out: ClassVar[tuple[int, int] | None] = None  # validation and test images at the end of one set of all

    data: str | None = option(None, "path of the data set", mathematical=False)  # type: ignore[misc]


@dataclass(frozen=True)
class FreyFace(FileData):
    kind = "freyface"
    stored_shape = (1, 28, 20)
    held_out = (300, 265)  # as in the papers, after 1400 for training

    def shape(self, images: bool) -> tuple[int, ...]:
        return (560,)

    def load(self, images: bool, threads: int = 1) -> Dataset:
        from eblvm.engine.data.datasets import freyface

        return freyface(self)


@dataclass(frozen=True)
class ImageData(FileData):
    padding: ClassVar[int] = 0  # pixels around an image, so that it can be halved often enough

    size: int | None = option(
        None, "resize images to this many pixels; none: the data set's own size", low=1, high=4096
    )
    flip: bool = option(False, "mirror images at random")  # type: ignore[misc]
    dequantize: bool = option(False, "train on (x + u)/256 with u uniform, in place of x/255")  # type: ignore[misc]

    @property
    def pixels(self) -> int:
        """Of an image as the model sees it."""
        return self.size or self.stored_shape[1] + 2 * self.padding

    def shape(self, images: bool) -> tuple[int, ...]:
        return (self.stored_shape[0], self.pixels, self.pixels)

    def load(self, images: bool, threads: int = 1) -> Dataset:
        from eblvm.engine.data.images import load

        return load(self)


@dataclass(frozen=True)
class Mnist(ImageData):
    kind = "mnist"
    stored_shape = (1, 28, 28)
    padding = 2


@dataclass(frozen=True)
class Cifar10(ImageData):
    kind = "cifar10"


@dataclass(frozen=True)
class Svhn(ImageData):
    kind = "svhn"


@dataclass(frozen=True)
class PictureData(ImageData):
    """From pictures of any size: prepared once, or decoded anew by every step that sees them."""

    input: str = option(  # type: ignore[misc]
        "memory",
        "a store in memory, or pictures decoded for each step: by Pillow, or ahead of it by DALI",
        choices=("memory", "pillow", "dali"),
    )
    cache: str | None = option(
        None, "folder of the stores made from pictures; none: $EBLVM_CACHE, or the user's cache", mathematical=False
    )


@dataclass(frozen=True)
class CelebA(PictureData):
    """Faces cropped and resized to `pixels`."""

    stored_shape = (3, 64, 64)

    crop: int = option(140, "pixels of the centre square that is kept of a picture 178 wide", low=1, high=178)

    def load(self, images: bool, threads: int = 1) -> Dataset:
        from eblvm.engine.data.images import load_faces

        return load_faces(self, threads)


@dataclass(frozen=True)
class Images(PictureData):
    """Pictures or arrays of one's own: the centre square of each, resized."""

    kind = "images"

    size: int = option(32, "pixels of a side, a multiple of 8; the centre square is resized to it", low=8)
    channels: int = option(3, "1 for grey, 3 for colours", choices=(1, 3))

    @property
    def stored_shape(self) -> tuple[int, int, int]:  # type: ignore[override]
        return self.channels, self.size, self.size

    def load(self, images: bool, threads: int = 1) -> Dataset:
        from eblvm.engine.data.any_images import load_any

        return load_any(self, threads)


@dataclass(frozen=True)
class CelebA32(CelebA):
    kind = "celeba32"
    stored_shape = (3, 32, 32)


@dataclass(frozen=True)
class CelebA64(CelebA):
    kind = "celeba64"


@dataclass(frozen=True)
class CelebA128(CelebA):
    kind = "celeba128"
    stored_shape = (3, 128, 128)
