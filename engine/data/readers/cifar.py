"""CIFAR-10 in both of its published forms, as tar.gz or unpacked: pickled batches, and records of 3073 bytes."""

import bz2
import gzip
import lzma
import tarfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import IO, Any, cast

import numpy as np

from eblvm.engine.damage import DAMAGE, damaged
from eblvm.engine.data import limits, published
from eblvm.engine.data.contents import Contents, Split
from eblvm.engine.data.readers import pickles
from eblvm.engine.errors import UserError

BATCHES = {"train": [f"data_batch_{i}" for i in range(1, 6)], "test": ["test_batch"]}
NAMES = {name for names in BATCHES.values() for name in names}
RECORD = 1 + 3 * 32 * 32


def is_folder(folder: Path) -> bool:
    return any((folder / f"{name}{suffix}").is_file() for name in NAMES for suffix in ("", ".bin"))


def is_tar(path: Path) -> bool:
    """True if a file is an archive, packed or not; one that cannot be unpacked is not."""
    try:
        return tarfile.is_tarfile(path)
    except DAMAGE:
        return False


def read_folder(folder: Path) -> Contents:
    paths = [path for path in folder.iterdir() if path.name.removesuffix(".bin") in NAMES and path.is_file()]
    return _read(str(folder), {path.name: partial(limits.read_file, path) for path in paths})


def read_tar(path: Path) -> Contents:
    """Members are read where they are; nothing is unpacked to the disk."""
    if not (contents := _members(path)):
        raise UserError(f"{path} has no data_batch_1; give --data the published cifar-10-python.tar.gz")
    loaded = _read(str(path), {name: partial(bytes, content) for name, content in contents.items()})
    if loaded.published is None:  # the binary form is known by its archive only
        known = published.verify(str(path), "cifar-10-binary.tar.gz", limits.read_file(path), loaded.total)
        return loaded._replace(published=known)
    return loaded


def _members(path: Path) -> dict[str, bytes]:
    """The batches of an archive. It is read no further than the limit of bytes, whatever its members claim."""
    contents: dict[str, bytes] = {}
    with (
        damaged(path, "cannot be unpacked"),
        _unpacked(path) as file,
        tarfile.open(fileobj=cast(IO[bytes], limits.Bounded(file, path)), mode="r:") as archive,
    ):
        for member in archive:
            name = Path(member.name).name
            if member.isreg() and name.removesuffix(".bin") in NAMES:
                # A sparse member has holes, which cost memory and no bytes of the archive.
                limits.check_bytes(path, sum(map(len, contents.values())) + member.size)
                contents[name] = archive.extractfile(member).read()  # type: ignore[union-attr]
    return contents


def _unpacked(path: Path) -> IO[bytes]:
    openers: dict[bytes, Callable[..., Any]] = {b"\x1f\x8b": gzip.open, b"BZh": bz2.open, b"\xfd7zXZ\0": lzma.open}
    with path.open("rb") as file:
        start = file.read(6)
    opener = next((opener for magic, opener in openers.items() if start.startswith(magic)), open)
    return cast(IO[bytes], opener(path, "rb"))


def _read(where: str, files: dict[str, Callable[[], bytes]]) -> Contents:
    suffix = ".bin" if any(name.endswith(".bin") for name in files) else ""
    if absent := [name + suffix for names in BATCHES.values() for name in names if name + suffix not in files]:
        raise published.missing(where, absent, "CIFAR-10")
    splits, known = {}, []
    for split, names in BATCHES.items():
        images, labels = [], []
        for name in names:
            content = files[name + suffix]()
            x, y = (binary if suffix else python)(content, f"{where}: {name}{suffix}")
            known.append(published.verify(f"{where}: {name}", name + suffix, content, len(x)))
            images.append(x)
            labels.append(y)
        splits[split] = Split(np.concatenate(images), np.concatenate(labels))
    return Contents(f"CIFAR-10, {'binary' if suffix else 'python'} batches", splits, published.agreed(known))


def python(content: bytes, where: str) -> tuple[np.ndarray, np.ndarray]:
    """A pickled dict with 'data' [n, 3072] uint8 and 'labels'."""
    batch = pickles.loads(content, where)
    if not isinstance(batch, dict) or not {"data", "labels"} <= set(batch):
        raise UserError(f"{where}: got no 'data' and 'labels', expected a CIFAR-10 batch")
    data, labels = batch["data"], batch["labels"]
    if isinstance(labels, np.ndarray):
        whole = labels.ndim == 1 and labels.dtype.kind in "iu"
    else:
        whole = isinstance(labels, list) and all(type(label) is int and 0 <= label <= 9 for label in labels)
    if not whole:
        raise UserError(f"{where}: got labels of another kind, expected one whole number from 0 to 9 for each image")
    y = np.asarray(labels).astype(np.int64)
    if not isinstance(data, np.ndarray) or data.dtype != np.uint8 or data.shape != (len(y), RECORD - 1):
        got = "x".join(map(str, data.shape)) if isinstance(data, np.ndarray) else type(data).__name__
        raise UserError(f"{where}: got data {got}, expected nx{RECORD - 1} uint8 with {len(y)} labels")
    return data.view(np.ndarray).reshape(-1, 3, 32, 32), y


def binary(content: bytes, where: str) -> tuple[np.ndarray, np.ndarray]:
    """Records of one label and 3x32x32 bytes."""
    if not content or len(content) % RECORD:
        raise UserError(f"{where}: got {len(content)} bytes, expected a multiple of {RECORD}; copy it again")
    records = np.frombuffer(content, np.uint8).reshape(-1, RECORD)
    if records[:, 0].max() > 9:
        raise UserError(f"{where}: got a label of {records[:, 0].max()}, expected 0 to 9; it is no CIFAR-10 batch")
    return records[:, 1:].reshape(-1, 3, 32, 32), records[:, 0].astype(np.int64)
