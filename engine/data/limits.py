"""Limits of the size that a file may unpack to, read from its header: a file that claims more is never unpacked.

EBLVM_MAX_BYTES and EBLVM_MAX_PIXELS replace the defaults: a quarter of the machine's memory for everything that one
file unpacks to, and 100 megapixels for one picture.
"""

import os
from pathlib import Path
from typing import IO

from eblvm.engine.errors import UserError, printable
from eblvm.engine.machine import physical_memory

BYTES, PIXELS = "EBLVM_MAX_BYTES", "EBLVM_MAX_PIXELS"
DEFAULT_PIXELS = 100_000_000


def max_bytes() -> int:
    return _given(BYTES) or physical_memory() // 4


def check_bytes(where: object, count: int) -> None:
    """Refuse a file whose content is `count` bytes if that is more than the limit."""
    limit = max_bytes()
    if count > limit:
        raise UserError(
            f"{printable(where)} needs {count:,} bytes of memory, the limit is {limit:,}; "
            f"if you trust the file and have the memory, set {BYTES}={count}"
        )


def read_file(path: Path) -> bytes:
    """A whole file, if it is not longer than the limit."""
    check_bytes(path, path.stat().st_size)
    return path.read_bytes()


def too_many_pixels(width: int, height: int) -> str | None:
    """The fault of a picture of this size, in words; None if it has none."""
    limit = _given(PIXELS) or DEFAULT_PIXELS
    if width * height <= limit:
        return None
    return f"it has {width}x{height} pixels, the limit is {limit:,}; if you trust it, set {PIXELS}={width * height}"


def _given(name: str) -> int | None:
    """Return the limit that the environment sets, if it does."""
    if not (text := os.environ.get(name)):
        return None
    if not (text.isascii() and text.isdigit() and len(text) < 20 and int(text) > 0):
        raise UserError(f"got {name}={text!r}, expected a whole number above 0; unset it, or give such a number")
    return int(text)


class Bounded:
    """A file that can be read up to the limit of unpacked bytes; reading beyond it is the refusal."""

    def __init__(self, file: IO[bytes], where: object):
        self._file, self._where, self._limit = file, where, max_bytes()

    def read(self, count: int = -1) -> bytes:
        place = self._file.tell()
        left = self._limit - place
        if count > left or count < 0:
            content = self._file.read(left + 1)
            check_bytes(self._where, place + len(content))
            return content
        return self._file.read(count)

    def seek(self, place: int, whence: int = os.SEEK_SET) -> int:
        if whence == os.SEEK_SET:
            check_bytes(self._where, place)
        return self._file.seek(place, whence)

    def tell(self) -> int:
        return self._file.tell()
