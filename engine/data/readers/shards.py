"""WebDataset shards: plain tar archives, whose files of one name up to its first dot are one sample.

A sample is its picture, and its class where a .cls is there; other files are ignored. Samples are in the order of the
shards and of the files within them. The index of where each picture lies is rebuilt at every start.
"""

import itertools
import re
from array import array
from collections.abc import Iterable, Iterator
from pathlib import Path, PurePosixPath

import numpy as np

from eblvm.engine.data import tar
from eblvm.engine.data.contents import Contents, Pictures, Split
from eblvm.engine.data.members import Member, Members, TarShard
from eblvm.engine.data.readers.picture_folder import SUFFIXES
from eblvm.engine.errors import UserError, printable

SUFFIX, CLASS = ".tar", ".cls"
MOST_SHARDS = 1_000_000  # that a pattern may name
MOST_HELD_OUT = 10_000  # pictures that validate, and as many that test: they are looked at again and again
LONGEST_CLASS = 20  # characters
RANGE = re.compile(r"(\d{1,18})\.\.(\d{1,18})")


def expanded(pattern: Path) -> list[Path]:
    """`faces-{000..012}.tar` and `{a,b}.tar` as the names that they abbreviate."""
    choices: list[Iterable[str]] = []
    count = 1
    for i, part in enumerate(re.split(r"\{([^{}]*)\}", str(pattern))):
        if bounds := RANGE.fullmatch(part) if i % 2 else None:
            first, last = int(bounds[1]), int(bounds[2])
            width = len(bounds[1]) if bounds[1].startswith("0") else 0
            choices.append(f"{n:0{width}}" for n in range(first, last + 1))
            count *= max(0, last - first + 1)
        else:
            names = part.split(",") if i % 2 else [part]
            choices.append(names)
            count *= len(names)
    if not 0 < count <= MOST_SHARDS:
        raise UserError(f"{printable(pattern)} names {count} shards, expected 1 to {MOST_SHARDS}, as in {{000..012}}")
    return [Path("".join(chosen)) for chosen in itertools.product(*choices)]


def in_folder(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if path.suffix == SUFFIX and path.is_file())


def read_shards(paths: list[Path]) -> Contents:
    """Train, valid and test as of a folder of pictures, the last 5 % each, but at most MOST_HELD_OUT."""
    if absent := [path for path in paths if not path.is_file()]:
        more = f" and {len(absent) - 1} more" if len(absent) > 1 else ""
        raise UserError(f"shard {printable(absent[0])}{more} does not exist; copy it, or name those that are there")
    named = sorted(path.name for path in paths)
    if twice := next((a for a, b in itertools.pairwise(named) if a == b), None):
        raise UserError(f"two shards are named {printable(twice)}; rename one, names tell their pictures apart")
    shards = tuple(map(TarShard.of, paths))
    which, offset, size, ends = array("i"), array("q"), array("q"), array("q")
    names, classes = bytearray(), array("q")
    for i, shard in enumerate(shards):
        for member, label in samples(shard):
            names += member.inner.encode("utf-8", "surrogateescape")
            for column, value in ((which, i), (offset, member.offset), (size, member.size), (ends, len(names))):
                column.append(value)
            if label is not None:
                classes.append(label)
    place, start, length, end = (np.array(column) for column in (which, offset, size, ends))
    pictures = Pictures(Members(shards, place, start, length, end, bytes(names)))
    labels = np.array(classes) if len(classes) == len(pictures) else None
    whole = Contents("WebDataset shards", {"all": Split(pictures, labels)}, where=str(paths[0].parent))
    held_out = min(MOST_HELD_OUT, max(1, len(pictures) // 20))
    return whole.divided((held_out, held_out)) if len(pictures) else whole


def samples(shard: TarShard) -> Iterator[tuple[Member, int | None]]:
    """(picture, class or None) of every sample of a shard that has a picture; two of them in one are an error."""
    path, seen = shard.path, set()
    for key, files in itertools.groupby(tar.entries(path), _key):
        if key in seen:
            raise UserError(f"{printable(path)}: sample {printable(key)} appears twice; pack its files together")
        seen.add(key)
        entries = list(files)
        pictures = [entry for entry in entries if PurePosixPath(entry.name).suffix.lower() in SUFFIXES]
        if len(pictures) > 1:
            both = " and ".join(printable(entry.name) for entry in pictures[:2])
            raise UserError(f"{printable(path)}: a sample has the pictures {both}, expected one; pack one of them")
        if not pictures:
            continue
        label = next((Member(shard, *entry) for entry in entries if entry.name == f"{key}{CLASS}"), None)
        yield Member(shard, *pictures[0]), None if label is None else _class(label)


def _key(entry: tar.Entry) -> str:
    folder, slash, name = entry.name.rpartition("/")
    return folder + slash + name.partition(".")[0]


def _class(member: Member) -> int:
    text = member.read_bytes().decode("ascii", "replace").strip() if member.size <= LONGEST_CLASS else ""
    if not re.fullmatch(r"-?\d{1,18}", text, re.ASCII):
        raise UserError(f"{printable(member)} has no whole number, expected the class of its picture; correct it")
    return int(text)
