"""Arrays of numbers from MATLAB files of the versions 4 and 5 (up to 7.2). Cells, structures and text are named only.

Written here because scipy's reader is compiled without checks: a damaged file can crash the interpreter. Everything a
file claims is compared with its length; ValueError says what does not fit.
https://www.mathworks.com/help/pdf_doc/matlab/matfile_format.pdf
"""

import math
import struct
import zlib
from collections.abc import Callable, Collection, Iterator
from typing import NamedTuple

import numpy as np

MATRIX, COMPRESSED = 14, 15
STORED = {1: "i1", 2: "u1", 3: "i2", 4: "u2", 5: "i4", 6: "u4", 7: "f4", 9: "f8", 12: "i8", 13: "u8"}
STORED_IN_4 = ("f8", "f4", "i4", "i2", "u2", "u1")
WHOLE = [f"{sign}int{bits}" for bits in (8, 16, 32, 64) for sign in ("", "u")]
CLASSES = ["none", "cell", "struct", "object", "char", "sparse", "double", "single", *WHOLE, "function", "opaque"]
NUMBERS = {"double", "single", *WHOLE}
HEAD = 4096  # bytes of a matrix that contain its class, sizes and name


class Variable(NamedTuple):
    name: str
    kind: str  # MATLAB's class
    array: np.ndarray | None  # None: not wanted, or no numbers


class Element(NamedTuple):
    kind: int
    content: memoryview
    end: int  # place of what follows


def variables(content: bytes, wanted: Collection[str], allow: Callable[[int], None]) -> Iterator[Variable]:
    """The variables of a file, with the arrays of the `wanted` names. `allow` is asked before bytes are unpacked."""
    if len(content) < 20:
        raise ValueError(f"it has {len(content)} bytes")
    if 0 in content[:4]:
        yield from _version_4(content, wanted)
        return
    order = {b"IM": "<", b"MI": ">"}.get(content[126:128])
    if order is None:
        raise ValueError("it has no MATLAB header")
    place = 128
    while place < len(content):
        element = _element(content, place, order, padded=False)
        place = element.end
        if element.kind == COMPRESSED:
            yield _compressed(element.content, wanted, order, allow)
        elif element.kind == MATRIX:
            yield _matrix(element.content, element.content, wanted, order)


def _element(content: bytes | memoryview, place: int, order: str, padded: bool = True) -> Element:
    """The element at `place`: a tag of 8 bytes and what it counts, or a small one within the tag."""
    if place + 8 > len(content):
        raise ValueError(f"it ends at byte {len(content)} in the middle of an element")
    kind, size = struct.unpack_from(f"{order}II", content, place)
    if kind >> 16:
        kind, size, start, end = kind & 0xFFFF, kind >> 16, place + 4, place + 8
        if size > 4:
            raise ValueError(f"a small element claims {size} bytes")
    else:
        start = place + 8
        end = start + size + (-size % 8 if padded else 0)
        if start + size > len(content):
            raise ValueError(f"an element claims {size} bytes, {len(content) - start} are left")
    return Element(kind, memoryview(content)[start : start + size], end)


def _compressed(packed: memoryview, wanted: Collection[str], order: str, allow: Callable[[int], None]) -> Variable:
    unpacker = zlib.decompressobj()
    tag = unpacker.decompress(packed, 8)
    if len(tag) < 8:
        raise ValueError("a compressed element is empty")
    kind, size = struct.unpack(f"{order}II", tag)
    if kind != MATRIX:
        raise ValueError(f"a compressed element is of type {kind}")
    head = unpacker.decompress(unpacker.unconsumed_tail, min(size, HEAD)) if size else b""
    matrix = _matrix(head, None, wanted, order)
    if matrix.name not in wanted or matrix.kind not in NUMBERS:
        return matrix
    allow(size)
    rest = unpacker.decompress(unpacker.unconsumed_tail, size - len(head)) if size > len(head) else b""
    beyond = unpacker.decompress(unpacker.unconsumed_tail, 1)  # as a rule nothing but the checksum, which it verifies
    if len(head) + len(rest) != size or not (beyond or unpacker.eof):
        raise ValueError(f"a compressed matrix does not unpack to its {size} bytes")
    whole = head + rest
    return _matrix(whole, whole, wanted, order)


def _matrix(
    head: bytes | memoryview, whole: bytes | memoryview | None, wanted: Collection[str], order: str
) -> Variable:
    """Class, sizes and name by the first elements of a matrix, its array by the next."""
    flags = _element(head, 0, order)
    sizes = _element(head, flags.end, order)
    name = _element(head, sizes.end, order)
    if len(flags.content) < 8 or sizes.kind != 5 or len(sizes.content) % 4:
        raise ValueError("a matrix has no flags or sizes")
    (number,) = struct.unpack_from(f"{order}I", flags.content)
    code = number & 0xFF
    kind = CLASSES[code] if code < len(CLASSES) else "unknown"
    text = bytes(name.content).decode("latin1")
    if whole is None or text not in wanted or kind not in NUMBERS:
        return Variable(text, kind, None)
    shape = struct.unpack(f"{order}{len(sizes.content) // 4}i", sizes.content)
    data = _element(whole, name.end, order, padded=False)
    if data.kind not in STORED:
        raise ValueError(f"{text!r} is stored as type {data.kind}")
    return Variable(text, kind, _array(data.content, order + STORED[data.kind], shape, text))


def _array(content: memoryview, code: str, shape: tuple[int, ...], name: str) -> np.ndarray:
    dtype = np.dtype(code)
    if any(n < 0 for n in shape) or len(shape) > 8 or math.prod(shape) * dtype.itemsize != len(content):
        sizes = "x".join(map(str, shape[:8]))
        raise ValueError(f"{name!r} of {sizes} has {len(content)} bytes of {dtype}")
    return np.frombuffer(content, dtype).reshape(shape, order="F")


def _version_4(content: bytes, wanted: Collection[str]) -> Iterator[Variable]:
    """Headers of five numbers (type, rows, columns, is it complex, length of the name), each followed by its data."""
    order = "<" if struct.unpack_from("<I", content)[0] < 5000 else ">"
    place = 0
    while place < len(content):
        if place + 20 > len(content):
            raise ValueError(f"it ends at byte {len(content)} in the middle of a header")
        number, rows, columns, complex_, length = struct.unpack_from(f"{order}5I", content, place)
        stored, kind = number // 10 % 10, number % 10
        if number >= 5000 or stored >= len(STORED_IN_4) or complex_ > 1 or not 0 < length <= 64:
            raise ValueError("it has no MATLAB header")
        code = order + STORED_IN_4[stored]
        start = place + 20 + length
        size = rows * columns * np.dtype(code).itemsize
        place = start + size * (1 + complex_)
        if place > len(content):
            raise ValueError(f"a matrix claims {size} bytes, {len(content) - start} are left")
        name = content[start - length : start].rstrip(b"\0").decode("latin1")
        numbers = kind == 0 and name in wanted
        array = _array(memoryview(content)[start : start + size], code, (rows, columns), name) if numbers else None
        yield Variable(name, ("double", "char", "sparse")[min(kind, 2)], array)
