"""One array in numpy's own format. What its header claims is held against its length before anything is allocated."""

import math
from typing import IO, NamedTuple

import numpy as np
from numpy.lib import format as npy

from eblvm.engine.damage import damaged, printable
from eblvm.engine.errors import UserError

HEADERS = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}  # 3.0 is for structured types only


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
    """What the beginning of an .npy claims, if that is exactly what its `size` in bytes can hold."""
    with damaged(where, what):
        version = npy.read_magic(file)
        shape, fortran, dtype = HEADERS[version](file)
    start = file.tell()
    if dtype.hasobject:
        raise UserError(f"{printable(where)} {what} (it holds Python objects); save plain numbers")
    expected = math.prod(shape) * dtype.itemsize
    if any(n < 0 for n in shape) or expected != size - start or not dtype.itemsize:
        sizes = "x".join(map(str, shape))
        raise UserError(f"{name} has {size - start} bytes of data, its header says {sizes} {dtype}; copy it again")
    return Header(tuple(map(int, shape)), fortran, dtype, start)
