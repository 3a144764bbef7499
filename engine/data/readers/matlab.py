"""MATLAB files: Frey face's frey_rawface.mat, and SVHN's cropped digits train_32x32.mat and test_32x32.mat."""

import io
from pathlib import Path

import numpy as np

from eblvm.engine.data import published
from eblvm.engine.data.contents import Contents, Split
from eblvm.engine.errors import UserError

SVHN = {"train": "train_32x32.mat", "test": "test_32x32.mat"}


def read_mat(path: Path) -> Contents:
    """Frey face by its key 'ff'; SVHN by 'X' and 'y', with its other half beside it."""
    arrays = load(path, path.read_bytes())
    if "ff" in arrays:
        return Contents("Frey face, MATLAB file", {"all": Split(frey(path, arrays["ff"]))})
    if {"X", "y"} <= set(arrays):
        return read_svhn(path.parent)
    raise UserError(f"{path}: got keys {', '.join(arrays) or 'none'}, expected 'ff' (Frey face) or 'X' and 'y' (SVHN)")


def load(path: Path, content: bytes) -> dict[str, np.ndarray]:
    from scipy.io import loadmat  # slow to import
    from scipy.io.matlab import MatReadError

    try:
        arrays = loadmat(io.BytesIO(content))
    except (MatReadError, ValueError, TypeError, OSError, EOFError, NotImplementedError, MemoryError) as error:
        raise UserError(f"{path} cannot be read as a MATLAB file ({error}); copy it again") from None
    except Exception as error:  # zlib's and struct's own, from wherever a truncated file breaks off
        raise UserError(f"{path} cannot be read as a MATLAB file ({error}); it may be truncated") from None
    return {key: value for key, value in arrays.items() if not key.startswith("__")}


def frey(path: Path, columns: np.ndarray) -> np.ndarray:
    """A column a face, 560 bytes: 28 rows of 20 pixels."""
    if columns.ndim != 2 or columns.shape[0] != 560 or columns.dtype != np.uint8:
        raise UserError(f"{path}: got 'ff' {columns.shape} {columns.dtype}, expected 560x1965 uint8")
    return np.ascontiguousarray(columns.T).reshape(-1, 1, 28, 20)


def read_svhn(folder: Path) -> Contents:
    absent = [name for name in SVHN.values() if not (folder / name).is_file()]
    if absent:
        raise published.missing(str(folder), absent, "SVHN")
    splits, known = {}, []
    for split, name in SVHN.items():
        path = folder / name
        content = path.read_bytes()
        arrays = load(path, content)
        splits[split] = Split(*svhn(path, arrays))
        known.append(published.verify(str(path), name, content, len(splits[split].images)))
    return Contents("SVHN, cropped digits", splits, published.agreed(known))


def svhn(path: Path, arrays: dict[str, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """X [32, 32, 3, n] and y [n, 1], in which 10 stands for the digit 0."""
    x, y = arrays.get("X"), arrays.get("y")
    if x is None or y is None or x.shape[:3] != (32, 32, 3) or x.dtype != np.uint8 or y.size != x.shape[-1]:
        shapes = ", ".join(f"{key} {value.shape}" for key, value in arrays.items())
        raise UserError(f"{path}: got {shapes or 'no arrays'}, expected X 32x32x3xn uint8 and y of n labels")
    return np.ascontiguousarray(x.transpose(3, 2, 0, 1)), y.reshape(-1).astype(np.int64) % 10
