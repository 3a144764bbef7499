"""MATLAB files: Frey face's frey_rawface.mat, and SVHN's cropped digits train_32x32.mat and test_32x32.mat."""

from functools import partial
from pathlib import Path

import numpy as np

from eblvm.engine.damage import damaged
from eblvm.engine.data import limits, published
from eblvm.engine.data.contents import Contents, Split
from eblvm.engine.data.readers.mat_format import NUMBERS, variables
from eblvm.engine.errors import UserError, printable

SVHN = {"train": "train_32x32.mat", "test": "test_32x32.mat"}


def read_mat(path: Path) -> Contents:
    """Frey face by its key 'ff'; SVHN by 'X' and 'y', with its other half in the same folder."""
    arrays, keys = load(path, limits.read_file(path), ("ff", "X", "y"))
    if "ff" in arrays:
        return Contents("Frey face, MATLAB file", {"all": Split(frey(path, arrays["ff"]))})
    if {"X", "y"} <= set(arrays):
        return read_svhn(path.parent)
    raise UserError(f"{path}: got keys {', '.join(keys) or 'none'}, expected 'ff' (Frey face) or 'X' and 'y' (SVHN)")


def load(path: Path, content: bytes, wanted: tuple[str, ...]) -> tuple[dict[str, np.ndarray], list[str]]:
    """The arrays of the `wanted` names that a file has, and all its names."""
    if content.startswith((b"MATLAB 7.3", b"\x89HDF")):
        raise UserError(f"{path} is a MATLAB 7.3 file (HDF5), expected MATLAB 5; save it in MATLAB with: save -v7")
    with damaged(path, "cannot be read as a MATLAB file"):
        matrices = list(variables(content, wanted, partial(limits.check_bytes, path)))
    for name, kind, _ in matrices:
        if name in wanted and kind not in NUMBERS:
            raise UserError(f"{path}: got {name!r} of MATLAB's class {kind}, expected an array of numbers")
    arrays = {name: array for name, _, array in matrices if array is not None}
    return arrays, [printable(name[:40]) for name, _, _ in matrices]


def frey(path: Path, columns: np.ndarray) -> np.ndarray:
    """A column a face, 560 bytes: 28 rows of 20 pixels."""
    if columns.ndim != 2 or columns.shape[0] != 560 or columns.dtype != np.uint8:
        raise UserError(f"{path}: got 'ff' {columns.shape} {columns.dtype}, expected 560x1965 uint8")
    return np.ascontiguousarray(columns.T).reshape(-1, 1, 28, 20)


def read_svhn(folder: Path) -> Contents:
    if absent := [name for name in SVHN.values() if not (folder / name).is_file()]:
        raise published.missing(str(folder), absent, "SVHN")
    splits, known = {}, []
    for split, name in SVHN.items():
        content = limits.read_file(path := folder / name)
        splits[split] = Split(*svhn(path, load(path, content, ("X", "y"))[0]))
        known.append(published.verify(str(path), name, content, len(splits[split].images)))
    return Contents("SVHN, cropped digits", splits, published.agreed(known))


def svhn(path: Path, arrays: dict[str, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """X [32, 32, 3, n] and y [n, 1], in which 10 is the digit 0."""
    x, y = arrays.get("X"), arrays.get("y")
    fits = x is not None and x.ndim == 4 and x.shape[:3] == (32, 32, 3) and x.dtype == np.uint8
    if x is None or y is None or not fits or y.size != x.shape[-1] or y.dtype.kind not in "iuf":
        shapes = ", ".join(f"{key} {value.shape}" for key, value in arrays.items())
        raise UserError(f"{path}: got {shapes or 'no arrays'}, expected X 32x32x3xn uint8 and y of n labels")
    digits = y.reshape(-1)
    if not ((digits >= 0) & (digits <= 10) & (digits == np.floor(digits))).all():
        raise UserError(f"{path}: got labels from {digits.min()} to {digits.max()}, expected whole numbers up to 10")
    return np.ascontiguousarray(x.transpose(3, 2, 0, 1)), digits.astype(np.int64) % 10
