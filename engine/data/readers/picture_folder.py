"""Folders of pictures: CelebA with its lists of partitions and attributes, or one's own."""

import os
from pathlib import Path

import numpy as np

from eblvm.engine.data import limits, published
from eblvm.engine.data.contents import Contents, Pictures, Split
from eblvm.engine.data.pictures.decoding import UnreadableError, opened
from eblvm.engine.errors import UserError, printable

SUFFIXES = (".jpg", ".jpeg", ".png")
CELEBA_FOLDER, PARTITION, ATTRIBUTES = "img_align_celeba", "list_eval_partition.txt", "list_attr_celeba.txt"
CELEBA_WIDTH = 178  # of the aligned pictures
CELEBA_CROP = 140 / CELEBA_WIDTH  # the centre that BiSM and VaGES keep, as a fraction of the width
CELEBA_ASPECTS = ((178, 218), (89, 109))  # as published, and at half the size
SPLITS = ("train", "valid", "test")  # 0, 1, 2 in the partition


def pictures_of(folder: Path) -> list[Path]:
    """The pictures by name: of `folder`, of CelebA's folder in it, or where it has none of its subfolders."""
    pictures = sorted(pictures_in(folder)) or sorted(pictures_in(folder / CELEBA_FOLDER))
    if pictures or not folder.is_dir():
        return pictures
    return sorted(path for below in folder.iterdir() for path in pictures_in(below))


def classes_of(pictures: list[Path]) -> tuple[str, ...]:
    """The names of the subfolders that the pictures are in: classes, if there are several."""
    names = tuple(sorted({path.parent.name for path in pictures}))
    return names if len(names) > 1 else ()


def _labels(pictures: list[Path]) -> np.ndarray | None:
    """The number of each picture's class."""
    number = {name: i for i, name in enumerate(classes_of(pictures))}
    return np.array([number[path.parent.name] for path in pictures]) if number else None


def pictures_in(folder: Path) -> list[Path]:
    """The pictures of one folder in no order, by their suffixes; what has such a name and is no file is an error."""
    if not folder.is_dir():
        return []
    pictures = []
    with os.scandir(folder) as entries:
        for entry in entries:
            path = folder / entry.name
            if path.suffix.lower() not in SUFFIXES or entry.is_dir():
                continue
            if not entry.is_file():
                raise UserError(f"{printable(path)} is no file but a broken link, a pipe or a device; remove it")
            pictures.append(path)
    return pictures


def read_folder(folder: Path) -> Contents:
    """CelebA is known by its lists, next to the pictures or one folder up, or by the size of its pictures."""
    paths = pictures_of(folder)
    if not paths:
        raise UserError(
            f"{printable(folder)} has no .jpg or .png pictures and no other data set; give --data the files as they "
            f"are published, CelebA's at {published.WHERE['CelebA']}"
        )
    partition, attributes = (_beside(paths[0].parent, name) for name in (PARTITION, ATTRIBUTES))
    if partition is None and attributes is None and _size(paths[0]) not in CELEBA_ASPECTS:
        return Contents(
            "folder of pictures", {"all": Split(Pictures(paths), _labels(paths))}, classes=classes_of(paths)
        )
    rows: dict[str, list[int]] = {}
    names: tuple[str, ...] = ()
    known = []
    if attributes is not None:
        rows, names = _attributes(attributes)
        known.append(published.verify(str(attributes), ATTRIBUTES, limits.read_file(attributes), len(rows)))
        if absent := [path.name for path in paths if path.name not in rows]:
            raise published.missing(str(attributes), [f"the row of {name}" for name in absent], "CelebA")

    def split(paths: list[Path]) -> Split:
        return Split(Pictures(paths), np.array([rows[p.name] for p in paths], np.int8) if rows else None)

    if partition is None:
        splits = {"all": split(paths)}
    else:
        places = _partition(partition)
        known.append(published.verify(str(partition), PARTITION, limits.read_file(partition), len(places)))
        by_name = {path.name: path for path in paths}
        if absent := [name for name in places if name not in by_name]:
            raise published.missing(str(paths[0].parent), absent, "CelebA")
        splits = {
            name: split([by_name[picture] for picture, place in places.items() if place == i])
            for i, name in enumerate(SPLITS)
        }
        if empty := [name for name, one in splits.items() if not len(one.images)]:
            raise UserError(
                f"{printable(partition)} puts no picture into {' and none into '.join(empty)}, expected some of 0 "
                "(train), 1 (valid) and 2 (test); correct it, or remove it to have the pictures split"
            )
    return Contents("CelebA, aligned faces", splits, published.agreed(known), names, CELEBA_CROP)


def _beside(folder: Path, name: str) -> Path | None:
    return next((path for path in (folder / name, folder.parent / name) if path.is_file()), None)


def _size(path: Path) -> tuple[int, int] | None:
    try:
        return opened(path.read_bytes()).size
    except UnreadableError:
        return None


def _lines(path: Path) -> list[str]:
    """The lines of a list. Names that are not UTF-8 are kept as the file system gives them."""
    text = os.fsdecode(limits.read_file(path)).removeprefix("\ufeff")
    return [line.removesuffix("\r") for line in text.removesuffix("\n").split("\n")] if text else []


def _partition(path: Path) -> dict[str, int]:
    """Lines of a name and 0, 1 or 2."""
    places: dict[str, int] = {}
    for number, line in enumerate(_lines(path), 1):
        name, *place = line.strip(" \t").rsplit(maxsplit=1) or [""]
        if place not in (["0"], ["1"], ["2"]):
            raise _bad_line(path, number, line, "expected a file name and 0, 1 or 2")
        if name in places:
            raise _bad_line(path, number, line, "the name appears twice; correct it")
        places[name] = int(place[0])
    return places


def _attributes(path: Path) -> tuple[dict[str, list[int]], tuple[str, ...]]:
    """A count (left out by some copies), the names, then lines of a file name and 1 or -1 for each."""
    lines = _lines(path)
    counted = bool(lines) and lines[0].strip().isascii() and lines[0].strip().isdigit() and len(lines[0]) < 20
    start = 1 if counted else 0
    names = tuple(lines[start].split()) if len(lines) > start else ()
    if not names:
        raise UserError(f"{printable(path)} has no line of attributes' names; copy it again, or remove it")
    rows = {}
    for number, line in enumerate(lines[start + 1 :], start + 2):
        picture, *values = line.strip(" \t").rsplit(maxsplit=len(names)) or [""]
        if len(values) != len(names) or not set(values) <= {"1", "-1"}:
            raise _bad_line(path, number, line, f"expected a name and {len(names)} of 1 or -1")
        rows[picture] = [int(value) for value in values]
    if counted and int(lines[0]) != len(rows):
        expected = f"the {lines[0].strip()} of its first line"
        raise UserError(f"{printable(path)}: got {len(rows)} rows, expected {expected}; copy it again")
    return rows, names


def _bad_line(path: Path, number: int, line: str, expected: str) -> UserError:
    return UserError(f"{printable(path)}, line {number}: got '{printable(line[:40])}', {expected}")
