"""`.npz` and `.npy`: x_train, y_train, x_test, y_test as Keras names them, or one array of images."""

import zipfile
from pathlib import Path

import numpy as np

from eblvm.engine.data.contents import Contents, Split
from eblvm.engine.errors import UserError

KEYS = {name: (f"x_{name}", f"y_{name}") for name in ("train", "valid", "test")} | {"all": ("x", "y")}
DAMAGED = (zipfile.BadZipFile, ValueError, OSError, EOFError)


def read_npz(path: Path) -> Contents:
    """Keys x_train, x_test (and y_train, y_test), or x (and y): images [n, H, W] or [n, H, W, C], uint8."""
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
            arrays = {key: archive[key] for key in archive if key.partition("_")[0] in ("x", "y")}
            keys = ", ".join(archive) or "none"
    except DAMAGED as error:
        raise UserError(f"{path} cannot be read as .npz ({error}); it may be truncated: copy it again") from None
    splits = {
        split: Split(as_images(path, x, arrays[x]), as_labels(path, arrays.get(y), len(arrays[x])))
        for split, (x, y) in KEYS.items()
        if x in arrays
    }
    if not splits:
        raise UserError(f"{path}: got keys {keys}, expected 'x', or 'x_train' and 'x_test'")
    return Contents(".npz archive", splits)


def read_npy(path: Path) -> Contents:
    """One array of images."""
    try:
        array = np.load(path, allow_pickle=False, mmap_mode="c")
    except DAMAGED as error:
        raise UserError(f"{path} cannot be read as .npy ({error}); it may be truncated: copy it again") from None
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
