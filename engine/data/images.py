"""Image data sets of the deep recipes as uint8 tensors [n, C, S, S]."""

from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image, UnidentifiedImageError
from torch import Tensor

from eblvm.engine.config import Config
from eblvm.engine.data.dataset import Dataset
from eblvm.engine.data.files import read_npz
from eblvm.engine.errors import UserError, unknown
from eblvm.engine.log import progress

CELEBA_CROP = 140 / 178  # the centre of the aligned pictures that the papers keep, as a share of the width
ARCHIVES = {"mnist": (28, 28), "cifar10": (32, 32, 3), "svhn": (32, 32, 3)}


def load(config: Config) -> Dataset:
    """mnist, cifar10, svhn: an .npz with x_train, y_train, x_test, y_test. celeba32, celeba64: a folder of pictures."""
    if config.data is None:
        raise UserError(f"recipe {config.recipe!r} needs the data set; give --data PATH")
    path = Path(config.data)
    if config.recipe in ARCHIVES:
        return archive(path, ARCHIVES[config.recipe], config.size)
    if config.recipe.startswith("celeba"):
        return celeba(path, config.size or int(config.recipe.removeprefix("celeba")))
    raise unknown("recipe", config.recipe, ["checkerboard", "freyface", "digits", *ARCHIVES, "celeba32", "celeba64"])


def archive(path: Path, shape: tuple[int, ...], size: int | None) -> Dataset:
    """Images of an .npz; MNIST's 28 pixels get a frame of 2. Of the training images the last 1,000 validate."""
    train, test = (read_npz(path, f"x_{split}", (None, *shape)) for split in ("train", "test"))
    labels = [
        torch.from_numpy(read_npz(path, f"y_{split}", (None,), np.integer).astype(np.int64))
        for split in ("train", "test")
    ]
    train_v, test_v = (resized(_channels_first(torch.from_numpy(x)), size) for x in (train, test))
    kept = len(train_v) - min(1000, len(train_v) // 10)
    return Dataset(train_v[:kept], train_v[kept:], test_v, train_labels=labels[0][:kept], test_labels=labels[1])


def _channels_first(x: Tensor) -> Tensor:
    return F.pad(x[:, None], (2, 2, 2, 2)) if x.dim() == 3 else x.permute(0, 3, 1, 2).contiguous()


def resized(v: Tensor, size: int | None) -> Tensor:
    """uint8 images [n, C, S, S] averaged over areas to `size` pixels."""
    if size is None or size == v.shape[-1]:
        return v
    chunks = [F.adaptive_avg_pool2d(chunk.float(), size).round().byte() for chunk in v.split(4096)]
    return torch.cat(chunks)


def celeba(folder: Path, size: int) -> Dataset:
    """Aligned faces, their centre cut out and resized; by file name the first 90 % train, 5 % validate, 5 % test."""
    paths = sorted(p for p in folder.glob("*") if p.suffix.lower() in (".jpg", ".jpeg", ".png"))
    if not paths:
        raise UserError(f"{folder} holds no .jpg or .png pictures; give --data the folder of the aligned CelebA images")
    v = torch.empty(len(paths), 3, size, size, dtype=torch.uint8)
    with progress(len(paths), f"reading {folder.name}", "picture") as bar:
        for i, path in enumerate(paths):
            v[i] = _face(path, size)
            bar.update()
    held = max(1, len(v) // 20)
    return Dataset(v[: -2 * held], v[-2 * held : -held], v[-held:])


def _face(path: Path, size: int) -> Tensor:
    try:
        with Image.open(path) as file:
            picture = file.convert("RGB")
            side = round(CELEBA_CROP * picture.width)
            left, top = (picture.width - side) // 2, (picture.height - side) // 2
            face = picture.crop((left, top, left + side, top + side)).resize((size, size), Image.Resampling.BILINEAR)
    except (OSError, UnidentifiedImageError) as error:
        raise UserError(f"{path} cannot be read as a picture ({error}); copy it again or remove it") from None
    return torch.from_numpy(np.array(face)).permute(2, 0, 1)
