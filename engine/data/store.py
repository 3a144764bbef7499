"""A prepared store: images as one memory-mapped file of uint8 [n, C, S, S], with a manifest beside it."""

import json
import math
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from eblvm.engine.data.contents import Contents, Split
from eblvm.engine.errors import UserError
from eblvm.engine.training.checkpoint import write_atomic

MANIFEST, IMAGES, LABELS = "manifest.json", "images.u8", "labels.npy"
VERSION = 1


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
    version: int = VERSION

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> "Manifest":
        splits = {name: (int(first), int(end)) for name, (first, end) in values["splits"].items()}
        lists = {name: tuple(values[name]) for name in ("shape", "attributes")}
        return cls(**values | lists | {"splits": splits})


@dataclass(frozen=True)
class Store:
    folder: Path
    manifest: Manifest
    images: np.ndarray  # mapped, copy on write
    labels: np.ndarray | None

    def contents(self) -> Contents:
        m, whole = self.manifest, Split(self.images, self.labels)
        splits = {name: whole.part(first, end) for name, (first, end) in m.splits.items()}
        return Contents(f"store of {m.kind}", splits, m.published, m.attributes)


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """What makes a folder a complete store: it is written last."""
    write_atomic(folder / MANIFEST, (json.dumps(asdict(manifest), indent=1) + "\n").encode())


def open_store(folder: Path) -> Store:
    """Map the store in `folder`; what is missing or does not fit is an error that names the file."""
    path = folder / MANIFEST
    try:
        values = json.loads(path.read_text())
        version = values.get("version")
        if version != VERSION:
            raise UserError(f"{path} has version {version}, expected {VERSION}; prepare the store again")
        manifest = Manifest.from_json(values)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise UserError(f"{path} is not the manifest of a store ({error!r}); prepare it again") from None
    images, expected = folder / IMAGES, manifest.count * math.prod(manifest.shape)
    got = images.stat().st_size if images.is_file() else 0
    if got != expected:
        raise UserError(f"{images} has {got} bytes, expected {expected} by its manifest; prepare the store again")
    mapped = np.memmap(images, np.uint8, "c", shape=(manifest.count, *manifest.shape))
    return Store(folder, manifest, mapped, _labels(folder / LABELS, manifest.count))


def _labels(path: Path, count: int) -> np.ndarray | None:
    if not path.exists():
        return None
    try:
        labels = np.load(path, allow_pickle=False)
    except (ValueError, OSError, EOFError) as error:
        raise UserError(f"{path} cannot be read ({error}); prepare the store again") from None
    if len(labels) != count:
        raise UserError(f"{path} has {len(labels)} rows, expected {count} by its manifest; prepare the store again")
    return labels
