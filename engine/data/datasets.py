"""The data sets of the GRBM recipes, as float tensors in memory."""

import zipfile
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from eblvm.engine.config import Config
from eblvm.engine.errors import UserError, unknown
from eblvm.kernels import philox
from eblvm.kernels.philox import Key, Purpose, purpose

WIDTHS = {"checkerboard": 2, "digits": 64, "freyface": 560}  # visible units, for whoever needs no data
CHECKERBOARD_SEED = 2020  # of the data itself: every run sees the same 80,000 points


class Dataset(NamedTuple):
    train: Tensor  # [n, D]
    valid: Tensor
    test: Tensor
    image_shape: tuple[int, int] | None  # for pictures of samples

    def to(self, device: str, dtype: torch.dtype) -> "Dataset":
        train, valid, test = (t.to(device, dtype) for t in self[:3])
        return Dataset(train, valid, test, self.image_shape)


def load(config: Config) -> Dataset:
    """The recipe's data set. Checkerboard: 60,000 / 10,000 / 10,000 points. Frey face: the paper's 1400/300/265."""
    if config.recipe == "checkerboard":
        dataset = checkerboard()
    elif config.recipe == "digits":
        dataset = digits()
    elif config.recipe == "freyface":
        dataset = freyface(config.data)
    else:
        raise unknown("recipe", config.recipe, list(WIDTHS))
    return dataset.to(config.device, getattr(torch, config.dtype))


def checkerboard(train: int = 60_000, valid: int = 10_000, test: int = 10_000) -> Dataset:
    """Points uniform on the 8 dark cells, each 2 wide, of a 4x4 board over [-4, 4]^2."""
    total = train + valid + test
    u = philox.uniform(Key(CHECKERBOARD_SEED, 0), purpose(Purpose.DATA), total, (3,))
    x = 4 * u[:, 0] - 2
    y = u[:, 1] - 2 * torch.floor(2 * u[:, 2]) + torch.floor(x) % 2
    return _split(torch.stack([2 * x, 2 * y], 1), (train, valid, test), None)


def digits() -> Dataset:
    """1797 images of 8x8 in their own order, scaled to [0, 1]: 1400 train, 200 validation, 197 test."""
    from sklearn.datasets import load_digits  # slow to import, and no other recipe needs it

    images = torch.from_numpy(load_digits().data / 16).float()
    return _split(images, (1400, 200, 197), (8, 8))


def freyface(path: str | None) -> Dataset:
    """`.npz` with `x` 1965x28x20 uint8 in the original order: first 1400 train, next 300 validation, last 265 test."""
    if path is None:
        raise UserError(
            "recipe 'freyface' needs the data set; give --data PATH, an .npz with key 'x', 1965x28x20 uint8"
        )
    images = read_npz(Path(path), "x", (1965, 28, 20))
    return _split(torch.from_numpy(images.reshape(1965, -1) / 255).float(), (1400, 300, 265), (28, 20))


def _split(v: Tensor, sizes: tuple[int, int, int], image_shape: tuple[int, int] | None) -> Dataset:
    train, valid, test = v.split(list(sizes))
    return Dataset(train, valid, test, image_shape)


def read_npz(path: Path, key: str, shape: tuple[int, ...]) -> np.ndarray:
    """One uint8 array of an .npz, or an error that names the file and what is wrong with it."""
    if not path.is_file():
        raise UserError(f"data file {path} does not exist; give --data the path of an .npz file")
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
            if key not in archive:
                raise UserError(f"{path}: got keys {', '.join(archive) or 'none'}, expected {key!r}")
            array = archive[key]
    except (zipfile.BadZipFile, ValueError, OSError, EOFError) as error:
        raise UserError(f"{path} cannot be read as .npz ({error}); it may be truncated: copy it again") from None
    if array.shape != shape or array.dtype != np.uint8:
        raise UserError(f"{path}: got {key!r} {array.shape} {array.dtype}, expected {shape} uint8")
    return array
