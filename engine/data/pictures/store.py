"""A prepared store: images as one memory-mapped file of uint8 [n, C, S, S], with a manifest next to it."""

import json
import math
from dataclasses import MISSING, asdict, dataclass, field, fields
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from eblvm.engine.damage import damaged
from eblvm.engine.data import limits
from eblvm.engine.data.contents import Contents, Split
from eblvm.engine.data.readers.arrays import read_array
from eblvm.engine.durable import write_atomic
from eblvm.engine.errors import UserError, printable, reason

MANIFEST, IMAGES, LABELS = "manifest.json", "images.u8", "labels.npy"
VERSION = 1
SPLITS = {"train", "valid", "test", "all"}
AGAIN = "prepare the store again"


@dataclass(frozen=True)
class Manifest:
    kind: str
    count: int
    shape: tuple[int, ...]  # [C, H, W] of one image
    splits: dict[str, tuple[int, int]]  # first and last-plus-one place of each
    source: dict[str, Any]  # name, count and digest of what the store was made from
    settings: dict[str, Any]  # size, crop and decoder
    skipped: list[dict[str, str]] = field(default_factory=list)  # pictures that could not be read: name, reason
    attributes: tuple[str, ...] = ()
    published: bool | None = None
    classes: tuple[str, ...] = ()
    version: int = VERSION

    @classmethod
    def from_json(cls, values: Any) -> "Manifest":
        """The manifest of `values`; ValueError says which of them cannot be."""
        unknown = set(values) - {f.name for f in fields(cls)}
        lacking = {f.name for f in fields(cls) if f.default is MISSING and f.default_factory is MISSING} - set(values)
        _require(not unknown and not lacking, "its keys", sorted(unknown or lacking), "those of a store")
        count, shape, attributes = values["count"], values["shape"], values.get("attributes", [])
        _require(type(count) is int and count > 0, "count", count, "a number of images above 0")
        sizes = isinstance(shape, list) and len(shape) == 3 and all(type(n) is int and n > 0 for n in shape)
        _require(sizes, "shape", shape, "[channels, height, width]")
        classes = values.get("classes", [])
        for name, given in (("attributes", attributes), ("classes", classes)):
            are_words = isinstance(given, list) and all(isinstance(word, str) for word in given)
            _require(are_words, name, given, "a list of names")
        kinds = {"kind": str, "source": dict, "settings": dict, "splits": dict, "skipped": list}
        for name, kind in kinds.items():
            _require(isinstance(values.get(name, []), kind), name, values.get(name), f"a JSON {kind.__name__}")
        published = values.get("published")
        _require(published is None or isinstance(published, bool), "published", published, "true, false or null")
        splits = _splits(values["splits"], count)
        words = {"attributes": tuple(attributes), "classes": tuple(classes)}
        return cls(**values | words | {"shape": tuple(shape), "splits": splits})


def _splits(given: dict[str, Any], count: int) -> dict[str, tuple[int, int]]:
    """Splits as places [first, end), none empty, none overlapping, all within the images."""
    _require(bool(given) and set(given) <= SPLITS, "splits", sorted(given), "some of train, valid, test, or all")
    for name, bounds in given.items():
        fits = isinstance(bounds, list | tuple) and len(bounds) == 2 and all(type(n) is int for n in bounds)
        fits = fits and 0 <= bounds[0] < bounds[1] <= count
        _require(fits, f"split {name!r}", bounds, f"[first, end] with 0 <= first < end <= {count}")
    ordered = sorted(given.items(), key=lambda item: item[1][0])
    for (name, (_, end)), (other, (first, _)) in pairwise(ordered):
        _require(end <= first, f"split {other!r}", f"from {first} on", f"none over {name!r}, which ends at {end}")
    return {name: (first, end) for name, (first, end) in given.items()}


def _require(right: bool, name: str, got: Any, expected: str) -> None:
    if not right:
        raise ValueError(f"got {name} {str(got)[:60]}, expected {expected}")


def _no_number(text: str) -> None:
    raise ValueError(f"got {text}, expected a number")


@dataclass(frozen=True)
class Store:
    folder: Path
    manifest: Manifest
    images: np.ndarray  # mapped, copy on write
    labels: np.ndarray | None

    def contents(self) -> Contents:
        m, whole = self.manifest, Split(self.images, self.labels)
        splits = {name: whole.part(first, end) for name, (first, end) in m.splits.items()}
        return Contents(f"store of {m.kind}", splits, m.published, m.attributes, classes=m.classes)


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """The file that makes a folder a complete store: it is written last."""
    write_atomic(folder / MANIFEST, (json.dumps(asdict(manifest), indent=1) + "\n").encode())


def open_store(folder: Path) -> Store:
    """Map the store in `folder`; what is missing or does not fit is an error that names the file."""
    path = folder / MANIFEST
    with damaged(path, "is not the manifest of a store", AGAIN):
        values = json.loads(path.read_bytes(), parse_constant=_no_number)
    version = values.get("version") if isinstance(values, dict) else None
    if version != VERSION:
        raise UserError(f"{printable(path)} has version {version}, expected {VERSION}; {AGAIN}")
    try:
        manifest = Manifest.from_json(values)
    except ValueError as error:
        raise UserError(f"{printable(path)} is not the manifest of a store ({reason(error)}); {AGAIN}") from None
    images, expected = folder / IMAGES, manifest.count * math.prod(manifest.shape)
    got = images.stat().st_size if images.is_file() else 0
    if got != expected:
        raise UserError(f"{printable(images)} has {got} bytes, expected {expected} by its manifest; {AGAIN}")
    mapped = np.memmap(images, np.uint8, "c", shape=(manifest.count, *manifest.shape))
    return Store(folder, manifest, mapped, _labels(folder / LABELS, manifest))


def _labels(path: Path, manifest: Manifest) -> np.ndarray | None:
    """Whole numbers [n], or attributes int8 [n, A]."""
    if not path.exists():
        return None
    with path.open("rb") as file:
        size = path.stat().st_size
        limits.check_bytes(path, size)
        labels = read_array(file, str(path), size, path, "cannot be read as labels")
    if len(labels.shape) not in (1, 2) or len(labels) != manifest.count or labels.dtype.kind not in "iu":
        got = f"{'x'.join(map(str, labels.shape))} {labels.dtype}"
        expected = f"{manifest.count} rows of whole numbers by"
    elif labels.ndim == 2 and labels.shape[1] != len(manifest.attributes):
        got, expected = f"{labels.shape[1]} attributes", f"the {len(manifest.attributes)} of"
    else:
        return labels
    raise UserError(f"{printable(path)} has {got}, expected {expected} its manifest; {AGAIN}")
