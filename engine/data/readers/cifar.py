"""CIFAR-10 in both of its published forms, as tar.gz or unpacked: pickled batches, and records of 3073 bytes."""

import tarfile
import zlib
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np

from eblvm.engine.data import published
from eblvm.engine.data.contents import Contents, Split
from eblvm.engine.data.readers import pickles
from eblvm.engine.errors import UserError

BATCHES = {"train": [f"data_batch_{i}" for i in range(1, 6)], "test": ["test_batch"]}
NAMES = {name for names in BATCHES.values() for name in names}
RECORD = 1 + 3 * 32 * 32
DAMAGED = (tarfile.TarError, OSError, EOFError, zlib.error)


def is_folder(folder: Path) -> bool:
    return any((folder / f"{name}{suffix}").is_file() for name in NAMES for suffix in ("", ".bin"))


def read_folder(folder: Path) -> Contents:
    found = {path.name: path.read_bytes for path in folder.iterdir() if path.name.removesuffix(".bin") in NAMES}
    return _read(str(folder), found)


def read_tar(path: Path) -> Contents:
    """Members are read where they are; nothing is unpacked to the disk."""
    try:
        with tarfile.open(path) as archive:
            members = {Path(m.name).name: m for m in archive.getmembers() if m.isfile()}
            wanted = {name: m for name, m in members.items() if name.removesuffix(".bin") in NAMES}
            if not wanted:
                raise UserError(f"{path} holds no data_batch_1; give --data the published cifar-10-python.tar.gz")
            contents = {name: archive.extractfile(m).read() for name, m in wanted.items()}  # type: ignore[union-attr]
    except DAMAGED as error:
        raise UserError(f"{path} cannot be unpacked ({error}); it may be truncated: copy it again") from None
    found = _read(str(path), {name: partial(bytes, content) for name, content in contents.items()})
    if found.published is None:  # the binary form is known by its archive only
        count = sum(len(split.images) for split in found.splits.values())
        known = published.verify(str(path), "cifar-10-binary.tar.gz", path.read_bytes(), count)
        return found._replace(published=known)
    return found


def _read(where: str, files: dict[str, Callable[[], bytes]]) -> Contents:
    suffix = ".bin" if any(name.endswith(".bin") for name in files) else ""
    absent = [name + suffix for names in BATCHES.values() for name in names if name + suffix not in files]
    if absent:
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
    data, labels = batch["data"], np.asarray(batch["labels"])
    fits = isinstance(data, np.ndarray) and data.dtype == np.uint8 and data.shape == (len(labels), RECORD - 1)
    if not fits or not np.issubdtype(labels.dtype, np.integer):
        raise UserError(f"{where}: got data {np.shape(data)}, expected nx{RECORD - 1} uint8 with n labels")
    return data.reshape(-1, 3, 32, 32), labels.astype(np.int64)


def binary(content: bytes, where: str) -> tuple[np.ndarray, np.ndarray]:
    """Records of one label and 3x32x32 bytes."""
    if not content or len(content) % RECORD:
        raise UserError(f"{where}: got {len(content)} bytes, expected a multiple of {RECORD}; copy it again")
    records = np.frombuffer(content, np.uint8).reshape(-1, RECORD)
    if records[:, 0].max() > 9:
        raise UserError(f"{where}: got a label of {records[:, 0].max()}, expected 0 to 9; it is no CIFAR-10 batch")
    return records[:, 1:].reshape(-1, 3, 32, 32), records[:, 0].astype(np.int64)
