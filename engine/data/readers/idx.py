"""MNIST's idx files, gzipped or not: a big-endian header (type, dimensions, sizes), then bytes."""

import gzip
import math
import struct
from pathlib import Path

import numpy as np

from eblvm.engine.damage import DAMAGE, damaged
from eblvm.engine.data import limits, published
from eblvm.engine.data.contents import Contents, Split
from eblvm.engine.errors import UserError

IMAGES, LABELS = b"\0\0\x08\x03", b"\0\0\x08\x01"
FILES = {
    "train": ("train-images-idx3-ubyte", "train-labels-idx1-ubyte"),
    "test": ("t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"),
}


def is_idx(path: Path) -> bool:
    """True if a file begins as one; a packed file that cannot be unpacked does not."""
    try:
        with path.open("rb") as file:
            start = file.read(4)
        if start[:2] == b"\x1f\x8b":
            with gzip.open(path) as packed:
                start = packed.read(4)
        return start in (IMAGES, LABELS)
    except DAMAGE:
        return False


def read_mnist(folder: Path) -> Contents:
    """The four files of `folder`."""
    paths = {name: find(folder, name) for names in FILES.values() for name in names}
    if absent := [name for name, path in paths.items() if path is None]:
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
    packed = path.suffix == ".gz"
    with gzip.open(path) if packed else path.open("rb") as file:
        start = 4 + 4 * magic[3]
        with damaged(path, "cannot be unpacked"):
            head = file.read(start)
        if head[:4] != magic:
            raise UserError(f"{path}: got magic number {head[:4].hex()}, expected {magic.hex()} of an idx file")
        shape = struct.unpack(f">{magic[3]}I", head[4:].ljust(4 * magic[3], b"\0"))
        expected = math.prod(shape)
        limits.check_bytes(path, expected)
        if not packed and path.stat().st_size - start != expected:
            raise _not_of(path, shape, str(path.stat().st_size - start))
        with damaged(path, "cannot be unpacked"):
            content = file.read(expected + 1)
    if len(content) != expected:
        raise _not_of(path, shape, str(len(content)) if len(content) < expected else "more")
    known = published.verify(str(path), name, head + content, shape[0])
    return np.frombuffer(content, np.uint8).reshape(shape), known


def _not_of(path: Path, shape: tuple[int, ...], got: str) -> UserError:
    return UserError(f"{path}: got {got} bytes of data, expected {'x'.join(map(str, shape))}; copy it again")
