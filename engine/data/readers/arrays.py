"""`.npz` and `.npy`: x_train, y_train, x_test, y_test as Keras names them, or one array of images."""

import math
import zipfile
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import IO, NamedTuple

import numpy as np
from numpy.lib import format as npy

from eblvm.engine.damage import damaged
from eblvm.engine.data import limits
from eblvm.engine.data.contents import Contents, Split
from eblvm.engine.errors import UserError, printable

KEYS = {name: (f"x_{name}", f"y_{name}") for name in ("train", "valid", "test")} | {"all": ("x", "y")}
HEADERS = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}  # 3.0 is for structured types only


def read_npz(path: Path) -> Contents:
    """Keys x_train, x_test (and y_train, y_test), or x (and y): images [n, H, W] or [n, H, W, C], uint8."""
    arrays, keys = load_npz(path, [key for pair in KEYS.values() for key in pair])
    splits = {
        split: Split(as_images(path, x, arrays[x]), as_labels(path, arrays.get(y), len(arrays[x])))
        for split, (x, y) in KEYS.items()
        if x in arrays
    }
    if not splits:
        raise UserError(f"{path}: got keys {listed(keys)}, expected 'x', or 'x_train' and 'x_test'")
    return Contents(".npz archive", splits)


def load_npz(path: Path, wanted: Collection[str]) -> tuple[dict[str, np.ndarray], list[str]]:
    """The arrays of the `wanted` keys that an archive has, and all its keys."""
    failing = (path, "cannot be read as .npz")
    with damaged(*failing):
        archive = zipfile.ZipFile(path)
    with archive:
        members = {info.filename.removesuffix(".npy"): info for info in archive.infolist()}
        chosen = {key: members[key] for key in wanted if key in members}
        limits.check_bytes(path, sum(info.file_size for info in chosen.values()))
        arrays = {}
        for key, info in chosen.items():
            with damaged(*failing):
                file = archive.open(info)
            with file:
                arrays[key] = read_array(file, f"{path}: {key}", info.file_size, *failing)
    return arrays, list(members)


def listed(keys: Sequence[str]) -> str:
    """Return the first keys of an archive for a message."""
    return ", ".join(printable(key[:40]) for key in keys[:20]) or "none"


def read_npy(path: Path) -> Contents:
    """One array of images, mapped and not read."""
    with path.open("rb") as file:
        header = read_header(file, str(path), path.stat().st_size, path, "cannot be read as .npy")
    if not math.prod(header.shape):
        raise UserError(f"{path} has no images (its shape is {'x'.join(map(str, header.shape))}); copy it again")
    with damaged(path, "cannot be read as .npy"):
        order = "F" if header.fortran else "C"
        array = np.memmap(path, header.dtype, "c", header.start, header.shape, order)  # type: ignore[call-overload]
    return Contents(".npy array", {"all": Split(as_images(path, "the array", array))})


def as_images(path: Path, name: str, array: np.ndarray) -> np.ndarray:
    """[n, H, W] and [n, H, W, C] to [n, C, H, W]; C is 1 or 3."""
    grey, colour = array.ndim == 3, array.ndim == 4 and array.shape[-1] in (1, 3)
    if not (grey or colour) or array.dtype != np.uint8:
        shape = "x".join(map(str, array.shape))
        raise UserError(f"{path}: got {name} {shape} {array.dtype}, expected nxHxW or nxHxWx3 uint8")
    return array[:, None] if grey else np.ascontiguousarray(np.moveaxis(array, -1, 1))


def as_labels(path: Path, array: np.ndarray | None, count: int) -> np.ndarray | None:
    if array is None:
        return None
    if array.shape != (count,) or not np.issubdtype(array.dtype, np.integer):
        shape = "x".join(map(str, array.shape))
        raise UserError(f"{path}: got labels {shape} {array.dtype} of {count} images, expected {count} integers")
    return array.astype(np.int64)


class Header(NamedTuple):
    shape: tuple[int, ...]
    fortran: bool
    dtype: np.dtype
    start: int  # of the data, in bytes


def read_array(file: IO[bytes], name: str, size: int, where: object, what: str) -> np.ndarray:
    """The array of an .npy of `size` bytes, once its header fits them."""
    read_header(file, name, size, where, what)
    with damaged(where, what):
        file.seek(0)
        return npy.read_array(file, allow_pickle=False)


def read_header(file: IO[bytes], name: str, size: int, where: object, what: str) -> Header:
    """The header of an .npy, if the array it claims is exactly of its `size` in bytes."""
    with damaged(where, what):
        version = npy.read_magic(file)
        shape, fortran, dtype = HEADERS[version](file)
    start = file.tell()
    if dtype.hasobject:
        raise UserError(f"{printable(where)} {what} (it contains Python objects); save plain numbers")
    expected = math.prod(shape) * dtype.itemsize
    if any(n < 0 for n in shape) or expected != size - start or not dtype.itemsize:
        got, says = f"{size - start} bytes of data", f"{'x'.join(map(str, shape))} {dtype}"
        raise UserError(f"{printable(name)} has {got}, its header says {says}; copy it again")
    return Header(tuple(map(int, shape)), fortran, dtype, start)
