"""Pictures within archives, each read in place: a sequence of them needs a few bytes for each."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, overload

import numpy as np

from eblvm.engine.data import limits
from eblvm.engine.errors import UserError, printable, reason


class TarShard(NamedTuple):
    path: Path
    size: int
    changed_ns: int

    @classmethod
    def of(cls, path: Path) -> TarShard:
        facts = path.stat()
        return cls(path, facts.st_size, facts.st_mtime_ns)


class Member(NamedTuple):
    """One file of an archive, with the part of a path's interface that is used."""

    shard: TarShard
    inner: str  # its name within the archive
    offset: int
    size: int

    @property
    def name(self) -> str:
        return f"{self.shard.path.name}/{self.inner}"

    def __str__(self) -> str:
        return f"{self.shard.path}/{self.inner}"

    @property
    def identity(self) -> str:
        return f"{self} {self.offset} {self.size} {self.shard.changed_ns}"

    def read_bytes(self) -> bytes:
        limits.check_bytes(self, self.size)
        try:
            with self.shard.path.open("rb", buffering=0) as file:
                changed = TarShard.of(self.shard.path) != self.shard
                file.seek(self.offset)
                content = file.read(self.size)
        except OSError as error:
            why = reason(error)
            raise UserError(f"{printable(self.shard.path)} can no longer be read ({why}); put it back") from None
        if changed or len(content) != self.size:
            raise UserError(f"{printable(self.shard.path)} has changed since it was indexed; start again")
        return content


@dataclass(frozen=True)
class Members(Sequence[Member]):
    """Files of archives as columns; indexing makes a `Member`."""

    shards: tuple[TarShard, ...]
    shard: np.ndarray  # int32 [n], which of them
    offset: np.ndarray  # int64 [n]
    size: np.ndarray  # int64 [n]
    name_end: np.ndarray  # int64 [n], in `names`
    names: bytes  # one after the other
    first: int = 0  # where the names of the first begin

    def __len__(self) -> int:
        return len(self.offset)

    @overload
    def __getitem__(self, place: int) -> Member: ...
    @overload
    def __getitem__(self, place: slice) -> Members: ...
    def __getitem__(self, place: int | slice) -> Member | Members:
        if isinstance(place, slice):
            start, _, step = place.indices(len(self))
            assert step == 1  # or a name would not begin where the one before it ends
            shard, offset, size, name_end = (c[place] for c in (self.shard, self.offset, self.size, self.name_end))
            return Members(self.shards, shard, offset, size, name_end, self.names, self._name_start(start))
        place = range(len(self))[place]
        inner = os.fsdecode(self.names[self._name_start(place) : self.name_end[place]])
        return Member(self.shards[self.shard[place]], inner, int(self.offset[place]), int(self.size[place]))

    def _name_start(self, place: int) -> int:
        return self.first if place == 0 else int(self.name_end[place - 1])
