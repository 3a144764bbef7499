"""Unpickling of plain containers and number arrays only: a pickle is a program, and a data set need not be one.

Three walls. The instructions are read first, by the standard library's own reader that runs none of them: unknown ones
and sizes beyond the end of the file are refused. Names resolve to the functions below and to nothing of
numpy's own: `ndarray` is a mark that only `_reconstruct` accepts. Arrays are made from plain number types and from
exactly as many bytes as their shape needs.
"""

import io
import math
import pickle
import pickletools
from typing import Any, Literal

import numpy as np

from eblvm.engine.damage import damaged
from eblvm.engine.errors import UserError, reason

MAX_INSTRUCTIONS = 2_000_000  # a published batch has about 50,000
MAX_TUPLES = 1_000  # each nests by one level at most; the interpreter hashes nested tuples without a limit of its own
MAX_DIMENSIONS = 8
PLAIN = {f"{kind}{size}" for kind in "iu" for size in (1, 2, 4, 8)} | {"f2", "f4", "f8", "b1", "?"}
PLAIN_STATE = (None, None, None, -1, -1, 0)  # of a dtype: no fields, no sub-array, no flags
REFUSED = {  # sets hash what is in them; the others ask for objects that only the writer's process has
    "FROZENSET", "EMPTY_SET", "ADDITEMS", "PERSID", "BINPERSID", "NEXT_BUFFER", "EXT1", "EXT2", "EXT4",
    "NEWOBJ", "NEWOBJ_EX", "OBJ", "INST",
}  # fmt: skip


class Named:
    """The object that replaces a name in a pickle. The pickle cannot change it, as it could a function."""

    __slots__ = ("_call",)

    def __init__(self, call: Any = None):
        self._call = call

    def __call__(self, *arguments: Any) -> Any:
        if self._call is None:
            raise pickle.UnpicklingError("it calls numpy.ndarray")
        return self._call(*arguments)

    def __setstate__(self, state: Any) -> None:
        raise pickle.UnpicklingError("it changes a function")


class PlainType:
    """A number type, in place of numpy's dtype: that one's own state can make it point into memory."""

    __slots__ = ("code", "order")

    def __init__(self, code: Any, align: Any = False, copy: Any = False):
        text = code.decode("ascii", "replace") if isinstance(code, bytes) else code
        if not isinstance(text, str) or text.lstrip("<>|=") not in PLAIN or len(text) > 3:
            raise pickle.UnpicklingError(f"an array of type {str(text)[:40]!r}")
        self.code = text.lstrip("<>|=")
        self.order: Literal["<", ">", "|", "="] = "="

    def __setstate__(self, state: Any) -> None:
        plain = isinstance(state, tuple) and len(state) == 8 and state[0] in (3, 4) and state[2:] == PLAIN_STATE
        if not plain or state[1] not in ("<", ">", "|", "="):
            raise pickle.UnpicklingError("an array of structured type")
        self.order = state[1]

    def dtype(self) -> np.dtype:
        return np.dtype(self.code).newbyteorder(self.order)


class Array(np.ndarray):
    """An array while it is unpickled: its state is set once, and only if it fits."""

    def __setstate__(self, state: Any, /) -> None:
        if self.size or not isinstance(state, tuple) or len(state) != 5:
            raise pickle.UnpicklingError("an array with a state that is not numpy's")
        version, shape, kind, fortran, content = state
        if version != 1 or not isinstance(fortran, bool | int):
            raise pickle.UnpicklingError("an array with a state that is not numpy's")
        if isinstance(content, str):  # what Python 2 wrote, read as latin1
            content = content.encode("latin1")
        content, dtype = _checked(content, kind, shape)
        super().__setstate__((1, shape, dtype, bool(fortran), content))  # type: ignore[arg-type]


def _checked(content: Any, kind: Any, shape: Any) -> tuple[bytes, np.dtype]:
    """The bytes and the type of an array of `shape`, if the one needs exactly the other."""
    if not isinstance(kind, PlainType):
        raise pickle.UnpicklingError("an array of no plain type")
    if not isinstance(content, bytes | bytearray | memoryview):
        raise pickle.UnpicklingError("an array of no bytes")
    if not isinstance(shape, tuple) or len(shape) > MAX_DIMENSIONS or not all(type(n) is int and n >= 0 for n in shape):
        raise pickle.UnpicklingError("an array with a shape that is no list of sizes")
    content, dtype = bytes(content), kind.dtype()
    if math.prod(shape) * dtype.itemsize != len(content) or max(shape, default=0) > max(1, len(content)):
        sizes = "x".join(str(n) if n < 10**20 else "more" for n in shape)
        raise pickle.UnpicklingError(f"an array of {sizes} from {len(content)} bytes")
    return content, dtype


def _frombuffer(content: Any, kind: Any, shape: Any, order: Any = "C") -> np.ndarray:
    content, dtype = _checked(content, kind, shape)
    if not isinstance(order, str) or order not in ("C", "F"):
        raise pickle.UnpicklingError("an array in no known order")
    return np.frombuffer(content, dtype).reshape(shape, order="F" if order == "F" else "C")


def _reconstruct(kind: Any, shape: Any = (0,), code: Any = b"b") -> np.ndarray:
    if kind is not NDARRAY:
        raise pickle.UnpicklingError("an array of another class")
    return np.ndarray.__new__(Array, (0,), np.uint8)


def _latin1(text: Any, encoding: Any = "latin1") -> bytes:
    """Bytes as protocol 2 writes them; `_codecs.encode` itself would look up any codec by name."""
    if encoding != "latin1" or not isinstance(text, str):
        raise pickle.UnpicklingError(f"encoding {str(encoding)[:40]!r}")
    return text.encode("latin1")


NDARRAY = Named()
ALLOWED: dict[tuple[str, str], Named] = {
    ("_codecs", "encode"): Named(_latin1),
    ("numpy", "ndarray"): NDARRAY,
    ("numpy", "dtype"): Named(PlainType),
    **{(f"numpy.{core}.multiarray", "_reconstruct"): Named(_reconstruct) for core in ("core", "_core")},
    **{(f"numpy.{core}.numeric", "_frombuffer"): Named(_frombuffer) for core in ("core", "_core")},
}


class Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in ALLOWED:
            raise pickle.UnpicklingError(f"it asks for {module[:80]}.{name[:80]}")
        return ALLOWED[module, name]


def check_instructions(content: bytes) -> None:
    """Read every instruction without running one. A memo place is used in turn, so a larger one would only fill memory.

    `pickletools` raises ValueError where an argument is longer than what is left of the file.
    """
    tuples = 0
    for number, (code, argument, _) in enumerate(pickletools.genops(content)):
        if code.name in REFUSED:
            raise pickle.UnpicklingError(f"it uses the instruction {code.name}")
        tuples += "TUPLE" in code.name
        memo = int(argument or 0) if code.name in ("PUT", "BINPUT", "LONG_BINPUT") else 0
        if number > MAX_INSTRUCTIONS or tuples > MAX_TUPLES or memo > number:
            raise pickle.UnpicklingError("it has more instructions, tuples or memo places than a batch needs")


def loads(content: bytes, where: str) -> Any:
    """The pickled value. Whatever is not a container, number, string or array is refused before it is made."""
    try:
        with damaged(where, "cannot be unpickled", passing=(pickle.UnpicklingError,)):
            check_instructions(content)
            return Unpickler(io.BytesIO(content), encoding="latin1").load()
    except pickle.UnpicklingError as error:
        raise UserError(
            f"{where} is refused: as a pickle it may contain arrays and containers only ({reason(error)}); "
            "use the published file"
        ) from None
