"""Long work in chunks that are kept as files: a killed evaluation continues, and several processes can work on one.

Piece i holds items i * CHUNK and on. A file exists completely or not at all.
"""

import io
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from eblvm.engine.damage import damaged
from eblvm.engine.durable import write_atomic
from eblvm.engine.errors import UserError
from eblvm.engine.progress import progress

CHUNK = 100  # items: minutes of sampling on a CPU
Make = Callable[[int, int], Tensor]  # (first, count) -> items first .. first + count - 1


class Shard(NamedTuple):
    """This process's shard of the chunks: every `of`-th from `rank` on."""

    rank: int = 0
    of: int = 1


WHOLE = Shard()


def chunk(folder: Path, first: int, count: int, make: Make) -> Tensor:
    """Items first .. first + count - 1 of one chunk, from its file, or made and kept if it has fewer."""
    path = folder / f"piece-{first // CHUNK:05d}.pt"
    found = kept(path)
    if found is None or len(found) < count:
        found = make(first, count)
        buffer = io.BytesIO()
        torch.save(found, buffer)
        folder.mkdir(parents=True, exist_ok=True)
        write_atomic(path, buffer.getvalue())
    return found[:count]


def kept(path: Path) -> Tensor | None:
    """What a chunk's file holds; None if there is none, or with a warning if it is damaged: it is made again."""
    if not path.is_file():
        return None
    try:
        with damaged(path, "is damaged", "it is made again"):
            found = torch.load(path, weights_only=True)
        if isinstance(found, Tensor) and found.dim() > 0:
            return found
        raise UserError(f"{path} holds no tensor; it is made again")
    except UserError as error:
        print(f"warning: {error}", file=sys.stderr)
        return None


def chunks(folder: Path, total: int, make: Make, shard: Shard = WHOLE, description: str = "") -> Iterator[Tensor]:
    """The first `total` items, a chunk at a time.

    What an item is must not depend on the chunk it falls into; then neither kills nor shards change it.
    """
    firsts = range(0, total, CHUNK)[shard.rank :: shard.of]
    with progress(sum(min(CHUNK, total - first) for first in firsts), description, "item") as bar:
        for first in firsts:
            count = min(CHUNK, total - first)
            found = chunk(folder, first, count, make)
            bar.update(count)
            yield found
