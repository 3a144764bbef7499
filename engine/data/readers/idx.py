"""MNIST's idx files, gzipped or not: a big-endian header (type, dimensions, sizes), then bytes."""

import gzip
import math
import struct
import zlib
from pathlib import Path

import numpy as np

from eblvm.engine.data import published
from eblvm.engine.data.contents import Contents, Split
from eblvm.engine.errors import UserError

IMAGES, LABELS = b"\0\0\x08\x03", b"\0\0\x08\x01"
FILES = {
    "train": ("train-images-idx3-ubyte", "train-labels-idx1-ubyte"),
    "test": ("t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"),
}


def is_idx(path: Path) -> bool:
    try:
        return peek(path, 4) in (IMAGES, LABELS)
    except (OSError, EOFError, zlib.error):
        return False


def peek(path: Path, count: int) -> bytes:
    """The first bytes, of the content where it is gzipped."""
    with path.open("rb") as file:
        start = file.read(count)
    if start[:2] != b"\x1f\x8b":
        return start
    with gzip.open(path) as file:
        return file.read(count)


def read_mnist(folder: Path) -> Contents:
    """The four files of `folder`."""
    paths = {name: find(folder, name) for names in FILES.values() for name in names}
    absent = [name for name, path in paths.items() if path is None]
    if absent:
        raise published.missing(str(folder), absent, "MNIST")
    splits, known = {}, []
    for split, (images_name, labels_name) in FILES.items():
        images, images_known = read_idx(paths[images_name], images_name, IMAGES)
        labels, labels_known = read_idx(paths[labels_name], labels_name, LABELS)
        if len(images) != len(labels):
            raise UserError(f"{folder}: got {len(images)} images and {len(labels)} labels of {split}; copy them again")
        splits[split] = Split(images[:, None], labels.astype(np.int64))
        known += [images_known, labels_known]
    return Contents("MNIST, idx files", splits, published.agreed(known))


def find(folder: Path, name: str) -> Path | None:
    """The file under its published name, or with '.' for the dash before idx as some archives unpack it, or gzipped."""
    for stem in (name, name.replace("-idx", ".idx")):
        for path in (folder / stem, folder / f"{stem}.gz"):
            if path.is_file():
                return path
    return None


def read_idx(path: Path | None, name: str, magic: bytes) -> tuple[np.ndarray, bool | None]:
    """The array of an idx file of unsigned bytes, and whether it is the published one."""
    assert path is not None
    try:
        content = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    except (OSError, EOFError, zlib.error) as error:
        raise UserError(f"{path} cannot be unpacked ({error}); it may be truncated: copy it again") from None
    if content[:4] != magic:
        raise UserError(f"{path}: got magic number {content[:4].hex()}, expected {magic.hex()} of an idx file")
    dimensions = content[3]
    start = 4 + 4 * dimensions
    shape = struct.unpack(f">{dimensions}I", content[4:start].ljust(4 * dimensions, b"\0"))
    if len(content) - start != math.prod(shape):
        expected = "x".join(map(str, shape))
        raise UserError(f"{path}: got {len(content) - start} bytes of data, expected {expected}; copy it again")
    known = published.verify(str(path), name, content, shape[0])
    return np.frombuffer(content, np.uint8, offset=start).reshape(shape), known
