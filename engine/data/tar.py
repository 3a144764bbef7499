"""The places of the files in a plain tar archive: one pass over its headers, so that each can be read on its own.

The standard library's tarfile parses a header; the walk is ours, because a claim of a hostile archive (a size beyond
its end, a name of gigabytes, a file of holes) must be refused before memory is allocated for it, and because tarfile
reads an archive that was cut between two files as complete.
"""

import os
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, NamedTuple

from eblvm.engine.damage import TRUNCATED, damaged
from eblvm.engine.errors import UserError, printable

BLOCK = tarfile.BLOCKSIZE
LONGEST = 1 << 20  # bytes of a header's extension: a long name, times, owners
PACKED = (b"\x1f\x8b", b"BZh", b"\xfd7zXZ\0", b"\x28\xb5\x2f\xfd")  # gzip, bzip2, xz, zstd
FILES = (tarfile.REGTYPE, tarfile.AREGTYPE)
EXTENSIONS = (tarfile.XHDTYPE, tarfile.GNUTYPE_LONGNAME)  # of the header that follows
OF_ALL = (tarfile.XGLTYPE, tarfile.GNUTYPE_LONGLINK)  # nothing that is read here
SIZES = "size", "GNU.sparse"  # of a file beyond 8 GB, and of one with holes: not what a picture is


class Entry(NamedTuple):
    name: str
    offset: int  # of the content's first byte
    size: int


def entries(path: Path) -> Iterator[Entry]:
    """The regular files of an archive in their order. Links, devices and files with holes are refused by name."""
    with path.open("rb") as file:
        length, place, long_name = os.fstat(file.fileno()).st_size, 0, None
        while True:
            file.seek(place)
            block = file.read(BLOCK)
            if block == bytes(BLOCK):
                return
            if len(block) < BLOCK:
                raise UserError(f"{printable(path)} ends at byte {length} with no end mark; {TRUNCATED}")
            if place == 0 and block.startswith(PACKED):
                raise UserError(f"{printable(path)} is packed, so nothing in it can be read alone; unpack it to a .tar")
            with damaged(path, f"has no tar header at byte {place}", "copy it again"):
                info = tarfile.TarInfo.frombuf(block, tarfile.ENCODING, "surrogateescape")
            offset = place + BLOCK
            if info.size < 0 or offset + info.size > length:
                claim = f"{printable(long_name or info.name)} claims {info.size:,} bytes"
                raise UserError(f"{printable(path)}: {claim}, {length - offset:,} are left; {TRUNCATED}")
            place = offset + -(-info.size // BLOCK) * BLOCK
            if info.type in EXTENSIONS:
                long_name = _extended(file, path, info) or long_name
            elif info.type in FILES:
                yield Entry(long_name or info.name, offset, info.size)
                long_name = None
            elif info.type == tarfile.DIRTYPE:
                long_name = None
            elif info.type not in OF_ALL:
                what = f"{printable(long_name or info.name)} is a link, a device or a file with holes"
                raise UserError(f"{printable(path)}: {what}; pack plain files only")


def _extended(file: BinaryIO, path: Path, info: tarfile.TarInfo) -> str | None:
    """The name that an extension gives to the next header; None if it gives none."""
    if info.size > LONGEST:
        raise UserError(f"{printable(path)} has a header of {info.size:,} bytes, at most {LONGEST:,} are read")
    content = file.read(info.size)
    if info.type == tarfile.GNUTYPE_LONGNAME:
        return os.fsdecode(content.rstrip(b"\0"))
    name = None
    with damaged(path, "has a header that cannot be read", "copy it again"):
        for key, value in _records(content):
            if key.startswith(SIZES):
                raise ValueError(f"it has {key!r}")
            if key == "path":
                name = os.fsdecode(value)
    return name


def _records(content: bytes) -> Iterator[tuple[str, bytes]]:
    """Records of pax: their length in decimal digits, a space, key=value and a line's end."""
    while content:
        digits, _, _ = content.partition(b" ")
        length = int(digits) if len(digits) < 8 else 0
        if not len(digits) < length <= len(content) or content[length - 1 : length] != b"\n":
            raise ValueError(f"a record of {length} bytes")
        key, _, value = content[len(digits) + 1 : length - 1].partition(b"=")
        yield key.decode(), value
        content = content[length:]
