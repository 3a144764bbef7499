"""Images that are given to an evaluation: samples drawn elsewhere, and data sets that a model has not seen."""

import zipfile
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor

from eblvm.engine.damage import damaged
from eblvm.engine.data import limits
from eblvm.engine.data.dataset import resized
from eblvm.engine.data.pictures.decoding import UnreadableError, rgb
from eblvm.engine.data.pictures.stream import unreadable
from eblvm.engine.data.readers.arrays import listed, load_npz
from eblvm.engine.data.readers.picture_folder import SUFFIXES, pictures_of
from eblvm.engine.durable import make_folder
from eblvm.engine.errors import UserError, printable
from eblvm.engine.models.deep import image_shape
from eblvm.engine.runs.saved import SavedRun

KEYS = ("x_test", "x")  # of an .npz, the first that is there


def read_images(path: Path, shape: tuple[int, int, int] | None) -> Tensor:
    """uint8 images [n, *shape] of a folder of pictures, an .npz (NHW or NHWC) or a .pt of `eblvm sample` (NCHW).

    Without a shape they stay as they are, and pictures get that of the first one. MNIST's 28 pixels get their frame of
    2, other square images are resized; their channels must be those of `shape`."""
    if path.is_dir():
        return _folder(path, shape)
    if not path.is_file():
        raise UserError(f"{path} does not exist; give a folder of pictures, an .npz or a .pt file")
    v = _tensor(path) if path.suffix == ".pt" else _archive(path)
    if not v.numel():
        raise UserError(f"{printable(path)} has no images; give a set with some")
    if shape is None:
        return v
    if v.shape[-1] == v.shape[-2] == 28 and shape[-1] != 28:
        v = F.pad(v, (2, 2, 2, 2))
    if v.shape[-1] == v.shape[-2] and shape[-1] == shape[-2]:
        v = resized(v, shape[-1])
    if tuple(v.shape[1:]) != shape:
        got, expected = ("x".join(map(str, s)) for s in (v.shape[1:], shape))
        raise UserError(f"{path}: got images of {got}, expected {expected} (channels x height x width)")
    return v


def as_bytes(v: Tensor) -> Tensor:
    """Images in [0, 1] as a picture file has them."""
    return v if v.dtype == torch.uint8 else (v.clamp(0, 1) * 255).round().to(torch.uint8)


def like_data(run: SavedRun, path: Path) -> Tensor:
    """Images of `path` in the shape of this run's samples."""
    flat = run.dataset.image_shape
    if flat is None and len(run.shape) != 3:
        raise UserError(f"got images {path}, but {run.folder} is a run on points")
    images = read_images(path, (1, *flat) if flat else image_shape(run.shape))
    device = run.dataset.train.device
    return images.flatten(1).to(device, run.dataset.dtype) / 255 if flat else images.to(device)


def has_images(run: SavedRun) -> bool:
    return len(run.shape) == 3 or run.dataset.image_shape is not None


def write_images(images: Tensor, folder: Path) -> None:
    """Images [n, C, S, S] in [0, 1] as 000000.png, 000001.png, ... in a folder, as `read_images` reads them."""
    make_folder(folder)
    for i, image in enumerate(as_bytes(images).cpu()):
        pixels = image[0] if len(image) == 1 else image.permute(1, 2, 0)
        Image.fromarray(pixels.numpy()).save(folder / f"{i:06}.png")


def as_images(v: Tensor, flat: tuple[int, int] | None) -> Tensor:
    """Samples [n, C, height, width] as they are, samples [n, height * width] as grey images of the size `flat`."""
    return v if flat is None else v.view(len(v), 1, *flat)


def _archive(path: Path) -> Tensor:
    arrays, keys = load_npz(path, KEYS)
    key = next((k for k in KEYS if k in arrays), None)
    if key is None:
        raise UserError(f"{path}: got keys {listed(keys)}, expected one of {', '.join(KEYS)}")
    x = arrays[key]
    if x.dtype != np.uint8 or x.ndim not in (3, 4):
        raise UserError(f"{path}: got {key!r} of {x.ndim} axes, {x.dtype}, expected uint8 images n x height x width")
    v = torch.from_numpy(x)
    return v[:, None] if v.dim() == 3 else v.permute(0, 3, 1, 2).contiguous()


def _tensor(path: Path) -> Tensor:
    with damaged(path, "cannot be read as a tensor", "save it with torch.save"), zipfile.ZipFile(path) as archive:
        size = sum(info.file_size for info in archive.infolist())
    limits.check_bytes(path, size)
    with damaged(path, "cannot be read as a tensor", "save it with torch.save"):
        v = torch.load(path, weights_only=True, map_location="cpu")
    if not isinstance(v, Tensor) or v.dim() != 4 or v.layout != torch.strided:
        raise UserError(f"{path}: expected one tensor of images, n x channels x height x width")
    limits.check_bytes(path, v.numel() * v.element_size())  # an expanded tensor is larger than its file
    if v.dtype == torch.uint8:
        return v.contiguous()
    if not v.is_floating_point() or not bool(v.isfinite().all()):
        raise UserError(f"{path}: got {v.dtype} images with the like of NaN, expected uint8, or numbers in [0, 1]")
    return as_bytes(v)


def _folder(folder: Path, shape: tuple[int, int, int] | None) -> Tensor:
    """The centre square of every picture, resized: to the first one's shape where none is given, in colour."""
    paths = pictures_of(folder)
    if not paths:
        raise UserError(f"{printable(folder)} has no {' or '.join(SUFFIXES)} pictures")
    if shape is None:
        with damaged(paths[0], "a picture"), Image.open(paths[0]) as picture:
            shape = 3, picture.height, picture.width
    channels, height, width = shape
    if channels not in (1, 3):
        raise UserError(f"pictures have 1 or 3 channels, this run's samples have {channels}")
    v = torch.empty(len(paths), *shape, dtype=torch.uint8)
    for i, path in enumerate(paths):
        try:
            image = Image.fromarray(rgb(path.read_bytes())).convert("RGB" if channels == 3 else "L")
        except UnreadableError as error:
            raise unreadable(path, str(error)) from None
        if image.size != (width, height):
            side = min(image.size)
            left, top = (image.width - side) // 2, (image.height - side) // 2
            square = image.crop((left, top, left + side, top + side))
            image = square.resize((width, height), Image.Resampling.BILINEAR)
        v[i] = torch.from_numpy(np.array(image)).view(height, width, channels).permute(2, 0, 1)
    return v
