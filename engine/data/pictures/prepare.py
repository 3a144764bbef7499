"""`eblvm data prepare`: decode, crop and resize once, into a store. Continues where it was stopped."""

import hashlib
import io
import json
import math
import os
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np
import torch

from eblvm.engine.data.contents import Contents, PictureFile, Pictures
from eblvm.engine.data.dataset import resized
from eblvm.engine.data.pictures import store
from eblvm.engine.data.pictures.framing import PIXEL_RULES, Decoder, Framing, decoder_for
from eblvm.engine.durable import failed, open_to_update, write_atomic
from eblvm.engine.errors import UserError, printable
from eblvm.engine.progress import progress

PROGRESS = "progress.json"
CHUNK = 512  # pictures between two records of the progress
SKIP_LIMIT = 0.001  # fraction of the pictures that may be unreadable
REPLACED = (store.MANIFEST, store.LABELS, PROGRESS)  # as a whole, by way of a temporary file
OURS = {store.IMAGES, *REPLACED, *(f".{name}.tmp" for name in REPLACED)}


class Position(NamedTuple):
    """The progress of a preparation: all that a resume needs."""

    read: int = 0  # pictures of the source
    written: int = 0
    digest: str = ""  # chained: sha256 of (digest before, name, sha256 of the file) for each file read
    skipped: tuple[dict[str, str], ...] = ()
    ends: tuple[int, ...] = ()  # places written at the end of each split that is complete
    shape: tuple[int, ...] = ()  # of an image, once one is known


def prepare(
    source: Path,
    contents: Contents,
    folder: Path,
    size: int | None = None,
    *,
    crop_fraction: float | None = None,
    decoder: str | None = None,
    threads: int = 1,
    skip_limit: float = SKIP_LIMIT,
    fingerprint: str | None = None,
    say: Callable[[str], None] = print,
) -> store.Store:
    """The store of `contents` in `folder`, made, continued, or complete already."""
    crop_fraction = contents.crop_fraction if crop_fraction is None else crop_fraction
    settings: dict[str, Any] = {"size": size, "crop_fraction": crop_fraction}
    decode: Decoder | None = None
    if contents.pictures:
        if size is None:
            raise UserError(f"{source} has pictures of any size; give the size of the squares to make, as --size 64")
        decode = decoder_for(Framing(size, crop_fraction), threads, decoder)
        settings |= {"decoder": decode.name, "pixel_rules": PIXEL_RULES}
    of: dict[str, Any] = {"name": source.resolve().name, "count": contents.total}
    if fingerprint is not None:
        of["fingerprint"] = fingerprint
    identity = {"source": of, "settings": settings, "version": store.VERSION}
    start = open_folder(folder, identity)
    if start is None:
        return store.open_store(folder)
    if start.read:
        say(f"continuing {folder} at picture {start.read} of {of['count']}")

    limit = int(skip_limit * of["count"]) if contents.pictures else 0
    images, position = folder / store.IMAGES, start
    with (
        open_to_update(images) as file,
        progress(of["count"], f"preparing {printable(of['name'])}", "picture", start.read) as bar,
    ):
        cut_back(images, file, start.written * math.prod(start.shape))
        for position, batch in chunks(contents, decode, size, start):
            for one in position.skipped[len(start.skipped) :]:
                say(f"skipped {printable(one['name'])}: {one['reason']}")
            if len(position.skipped) > limit:
                worst, why = printable(position.skipped[-1]["name"]), position.skipped[-1]["reason"]
                bad = f"{len(position.skipped)} of {of['count']} pictures are unreadable, at most {limit} may be"
                raise UserError(f"{worst} cannot be read as a picture ({why}): {bad}; copy them again, or raise --skip")
            append(images, file, batch)
            record_progress(folder, identity, position)
            bar.update(position.read - start.read)
            start = position
    if not position.written:
        raise UserError(f"{printable(source)} has no picture that can be read; nothing was prepared")
    if len(position.ends) != len(contents.splits):
        raise UserError(f"{folder / PROGRESS} does not fit the source; remove {folder} and prepare it again")
    splits = dict(zip(contents.splits, pairwise((0, *position.ends)), strict=True))
    if empty := [name for name, (first, end) in splits.items() if first == end]:
        raise UserError(f"{printable(source)} has no picture of {empty[0]!r} that can be read; copy them again")
    if (labels := kept_labels(contents, position)) is not None:
        buffer = io.BytesIO()
        np.save(buffer, labels)
        write_atomic(folder / store.LABELS, buffer.getvalue())
    manifest = store.Manifest(
        contents.kind, position.written, position.shape, splits, of | {"sha256": position.digest}, settings,
        list(position.skipped), contents.attributes, contents.published, contents.classes,
    )  # fmt: skip
    store.write_manifest(folder, manifest)
    (folder / PROGRESS).unlink()
    return store.open_store(folder)


def open_folder(folder: Path, identity: dict[str, Any]) -> Position | None:
    """The position to continue at: None if the store is complete. A folder of something else is refused."""
    if (folder / store.MANIFEST).exists():
        m = store.open_store(folder).manifest
        source = {k: v for k, v in m.source.items() if k != "sha256"}
        if {"source": source, "settings": m.settings, "version": m.version} == identity:
            return None
        raise UserError(f"{folder} is a store of another source or other settings; give another folder, or remove it")
    if not folder.exists():
        folder.mkdir(parents=True)
    elif not folder.is_dir() or any(path.name not in OURS for path in folder.iterdir()):
        raise UserError(f"{folder} exists and is not a store; nothing was overwritten: give another folder")
    saved = saved_progress(folder)
    if saved is not None and saved[0] != identity:
        raise UserError(f"{folder} was begun with another source or other settings; give another folder, or remove it")
    return saved[1] if saved is not None else Position()


def cut_back(path: Path, file: IO[bytes], length: int) -> None:
    """Drop what was written after the last record of the progress."""
    try:
        file.seek(length)
        file.truncate()
    except OSError as error:
        raise failed(path, error) from None


def append(path: Path, file: IO[bytes], batch: np.ndarray) -> None:
    """Flush a chunk to the disk: otherwise a power cut could keep the record of a chunk that it lost."""
    try:
        file.write(batch.tobytes())
        file.flush()
        os.fsync(file.fileno())
    except OSError as error:
        raise failed(path, error, "the pictures prepared before are kept") from None


def saved_progress(folder: Path) -> tuple[Any, Position] | None:
    """The recorded identity and position; None, to begin anew, if missing, damaged, or beyond what was written."""
    try:
        saved = json.loads((folder / PROGRESS).read_bytes())
        values: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in saved["position"].items()}
        position, identity = Position(**values), saved["identity"]
        numbers = (position.read, position.written, *position.ends, *position.shape)
        names = [one["name"] + one["reason"] + position.digest for one in position.skipped]
        sound = all(type(n) is int and n >= 0 for n in numbers) and all(isinstance(name, str) for name in names)
        written = position.written * math.prod(position.shape)
        return (identity, position) if sound and (folder / store.IMAGES).stat().st_size >= written else None
    except (OSError, ValueError, TypeError, LookupError, AttributeError, RecursionError):
        return None


def record_progress(folder: Path, identity: dict[str, Any], position: Position) -> None:
    write_atomic(folder / PROGRESS, json.dumps({"identity": identity, "position": position._asdict()}).encode())


def chunks(
    contents: Contents, decode: Decoder | None, size: int | None, position: Position
) -> Iterator[tuple[Position, np.ndarray]]:
    """(position after it, uint8 [m, C, H, W]) of every chunk after `position`. No chunk crosses a split's end."""
    first = 0
    for split in contents.splits.values():
        count = len(split.images)
        for place in range(max(0, position.read - first), count, CHUNK):
            end = min(place + CHUNK, count)
            if isinstance(split.images, Pictures):
                assert decode is not None
                batch, position = decoded(split.images.files[place:end], decode, position)
            else:
                pixels = np.ascontiguousarray(split.images[place:end])
                batch = resized(torch.from_numpy(pixels), size).numpy()
                digest = hashlib.sha256(position.digest.encode() + pixels.tobytes()).hexdigest()
                position = position._replace(digest=digest, written=position.written + len(batch))
            position = position._replace(read=first + end, shape=tuple(batch.shape[1:]))
            if end == count:
                position = position._replace(ends=(*position.ends, position.written))
            yield position, batch
        first += count


def decoded(files: Sequence[PictureFile], decode: Decoder, position: Position) -> tuple[np.ndarray, Position]:
    encoded = [file.read_bytes() for file in files]
    good, skipped, digest = [], list(position.skipped), position.digest
    for file, content, image in zip(files, encoded, decode(encoded), strict=True):
        chained = f"{digest}{file.name}{hashlib.sha256(content).hexdigest()}"
        digest = hashlib.sha256(os.fsencode(chained)).hexdigest()
        if isinstance(image, str):
            skipped.append({"name": file.name, "reason": image})
        else:
            good.append(image)
    written, size = position.written + len(good), decode.framing.size
    batch = np.stack(good) if good else np.empty((0, 3, size, size), np.uint8)
    return batch, position._replace(written=written, digest=digest, skipped=tuple(skipped))


def kept_labels(contents: Contents, position: Position) -> np.ndarray | None:
    """The labels of all splits, without those of the skipped pictures; None if a split has none."""
    skipped, labels = {one["name"] for one in position.skipped}, []
    for images, of_split in contents.splits.values():
        if of_split is None:
            return None
        kept = [f.name not in skipped for f in images.files] if isinstance(images, Pictures) else slice(None)
        labels.append(of_split[kept])
    return np.concatenate(labels)
