"""Folders of pictures: CelebA with its lists of partitions and attributes, or anybody's."""

from pathlib import Path

import numpy as np
from PIL import Image, UnidentifiedImageError

from eblvm.engine.data import published
from eblvm.engine.data.contents import Contents, Pictures, Split
from eblvm.engine.errors import UserError

SUFFIXES = (".jpg", ".jpeg", ".png")
CELEBA_FOLDER, PARTITION, ATTRIBUTES = "img_align_celeba", "list_eval_partition.txt", "list_attr_celeba.txt"
CELEBA_SHARE = 140 / 178  # the centre of the aligned pictures that the papers keep, as a share of the width
CELEBA_ASPECTS = ((178, 218), (89, 109))  # as published, and at half the size
SPLITS = ("train", "valid", "test")  # 0, 1, 2 in the partition


def pictures_of(folder: Path) -> list[Path]:
    """The pictures by name: of `folder`, of CelebA's folder in it, or where it has none of its subfolders."""
    for place, pattern in ((folder, "*"), (folder / CELEBA_FOLDER, "*"), (folder, "*/*")):
        found = sorted(p for p in place.glob(pattern) if p.suffix.lower() in SUFFIXES)
        if found:
            return found
    return []


def read_folder(folder: Path) -> Contents:
    """CelebA is known by its lists, beside the pictures or one folder up, or by the size of its pictures."""
    paths = pictures_of(folder)
    if not paths:
        raise UserError(
            f"{folder} holds no .jpg or .png pictures and no other data set; give --data the files as they are "
            f"published, CelebA's at {published.WHERE['CelebA']}"
        )
    partition, attributes = (_beside(paths[0].parent, name) for name in (PARTITION, ATTRIBUTES))
    if partition is None and attributes is None and _size(paths[0]) not in CELEBA_ASPECTS:
        return Contents("folder of pictures", {"all": Split(Pictures(paths))})
    rows: dict[str, list[int]] = {}
    names: tuple[str, ...] = ()
    known = []
    if attributes is not None:
        rows, names = _attributes(attributes)
        known.append(published.verify(str(attributes), ATTRIBUTES, attributes.read_bytes(), len(rows)))
        if absent := [path.name for path in paths if path.name not in rows]:
            raise published.missing(str(attributes), [f"the row of {name}" for name in absent], "CelebA")

    def split(paths: list[Path]) -> Split:
        return Split(Pictures(paths), np.array([rows[p.name] for p in paths], np.int8) if rows else None)

    if partition is None:
        splits = {"all": split(paths)}
    else:
        places = _partition(partition)
        known.append(published.verify(str(partition), PARTITION, partition.read_bytes(), len(places)))
        by_name = {path.name: path for path in paths}
        if absent := [name for name in places if name not in by_name]:
            raise published.missing(str(paths[0].parent), absent, "CelebA")
        splits = {
            name: split([by_name[picture] for picture, place in places.items() if place == i])
            for i, name in enumerate(SPLITS)
        }
    return Contents("CelebA, aligned faces", splits, published.agreed(known), names, CELEBA_SHARE)


def _beside(folder: Path, name: str) -> Path | None:
    return next((path for path in (folder / name, folder.parent / name) if path.is_file()), None)


def _size(path: Path) -> tuple[int, int] | None:
    try:
        with Image.open(path) as picture:
            return picture.size
    except (OSError, UnidentifiedImageError):
        return None


def _partition(path: Path) -> dict[str, int]:
    """Lines of a name and 0, 1 or 2."""
    places = {}
    for number, line in enumerate(path.read_text().splitlines(), 1):
        fields = line.split()
        if len(fields) != 2 or fields[1] not in ("0", "1", "2"):
            raise UserError(f"{path}, line {number}: got {line[:40]!r}, expected a file name and 0, 1 or 2")
        places[fields[0]] = int(fields[1])
    return places


def _attributes(path: Path) -> tuple[dict[str, list[int]], tuple[str, ...]]:
    """A count (left out by some copies), the names, then lines of a file name and 1 or -1 for each."""
    lines = path.read_text().splitlines()
    start = 1 if lines and lines[0].strip().isdigit() else 0
    names = tuple(lines[start].split()) if len(lines) > start else ()
    rows = {}
    for number, line in enumerate(lines[start + 1 :], start + 2):
        picture, *values = line.split() or [""]
        if len(values) != len(names) or not set(values) <= {"1", "-1"}:
            raise UserError(f"{path}, line {number}: got {line[:40]!r}, expected a name and {len(names)} of 1 or -1")
        rows[picture] = [int(value) for value in values]
    if start and int(lines[0]) != len(rows):
        raise UserError(
            f"{path}: got {len(rows)} rows, expected the {lines[0].strip()} of its first line; copy it again"
        )
    return rows, names
