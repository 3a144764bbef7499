"""Files as they are given to `--data`, read with errors that name the file and what is wrong with it."""

import zipfile
from pathlib import Path
from typing import Any

import numpy as np

from eblvm.engine.errors import UserError


def read_npz(path: Path, key: str, shape: tuple[int | None, ...], dtype: Any = np.uint8) -> np.ndarray:
    """One array of an .npz; None in `shape` stands for any length."""
    if not path.is_file():
        raise UserError(f"data file {path} does not exist; give --data the path of an .npz file")
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
            if key not in archive:
                raise UserError(f"{path}: got keys {', '.join(archive) or 'none'}, expected {key!r}")
            array = archive[key]
    except (zipfile.BadZipFile, ValueError, OSError, EOFError) as error:
        raise UserError(f"{path} cannot be read as .npz ({error}); it may be truncated: copy it again") from None
    fits = array.ndim == len(shape) and all(want in (None, got) for got, want in zip(array.shape, shape, strict=True))
    if not fits or not np.issubdtype(array.dtype, dtype):
        got, expected = ("x".join(map(str, s)) for s in (array.shape, ["n" if s is None else s for s in shape]))
        raise UserError(f"{path}: got {key!r} {got} {array.dtype}, expected {expected} {dtype.__name__}")
    return array
