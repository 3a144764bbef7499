"""Unpickling of plain containers and numpy arrays only: a pickle is a program, and a data set need not be one."""

import io
import pickle
from typing import Any

import numpy as np
from numpy._core import multiarray
from numpy._core.numeric import _frombuffer  # type: ignore[attr-defined]

from eblvm.engine.errors import UserError


def _latin1(text: str, encoding: str = "latin1") -> bytes:
    """How protocol 2 writes bytes; `_codecs.encode` itself would look up any codec by name."""
    if encoding != "latin1":
        raise pickle.UnpicklingError(f"encoding {encoding!r}")
    return text.encode("latin1")


ALLOWED: dict[tuple[str, str], Any] = {
    ("_codecs", "encode"): _latin1,
    ("numpy", "ndarray"): np.ndarray,
    ("numpy", "dtype"): np.dtype,
    **{(f"numpy.{core}.multiarray", "_reconstruct"): multiarray._reconstruct for core in ("core", "_core")},
    **{(f"numpy.{core}.numeric", "_frombuffer"): _frombuffer for core in ("core", "_core")},
}


class Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in ALLOWED:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}")
        return ALLOWED[module, name]


def loads(content: bytes, where: str) -> Any:
    """The pickled value. Whatever is not a container, number, string or array is refused before it is made."""
    try:
        return Unpickler(io.BytesIO(content), encoding="latin1").load()
    except pickle.UnpicklingError as error:
        raise UserError(
            f"{where} is refused: as a pickle it may hold arrays and containers only ({error}); use the published file"
        ) from None
    except Exception as error:  # a broken pickle fails in any of its instructions, with any exception
        raise UserError(f"{where} cannot be unpickled ({error}); it may be truncated: copy it again") from None
