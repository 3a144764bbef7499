"""Long work in chunks that are kept as files: a killed evaluation continues, and several processes can work on one.

Chunk i has the items from i * CHUNK on. A file exists completely or not at all.
"""

import hashlib
import io
import sys
from collections.abc import Callable, Iterator, Mapping
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


def tensor_digest(tensors: Mapping[str, Tensor]) -> str:
    """SHA-256 of names, types, shapes and bytes, whatever the order and the device: by it a figure names its weights
    and its data, and a folder what is kept in it."""
    digest = hashlib.sha256()
    for name, t in sorted(tensors.items()):
        digest.update(f"{name} {t.dtype} {list(t.shape)}\n".encode())
        digest.update(t.detach().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()


def chunk(folder: Path, first: int, count: int, make: Make) -> Tensor:
    """Items first .. first + count - 1 of one chunk, from its file, or made and kept if it has fewer."""
    path = folder / f"piece-{first // CHUNK:05d}.pt"
    items = kept(path)
    if items is None or len(items) < count:
        items = make(first, count)
        buffer = io.BytesIO()
        torch.save(items, buffer)
        folder.mkdir(parents=True, exist_ok=True)
        write_atomic(path, buffer.getvalue())
    return items[:count]


def kept(path: Path) -> Tensor | None:
    """The items in a chunk's file; None if there is none, or with a warning if it is damaged: it is made again."""
    if not path.is_file():
        return None
    try:
        with damaged(path, "is damaged", "it is made again"):
            items = torch.load(path, weights_only=True)
        if isinstance(items, Tensor) and items.dim() > 0:
            return items
        raise UserError(f"{path} has no tensor; it is made again")
    except UserError as error:
        print(f"warning: {error}", file=sys.stderr)
        return None


def chunks(folder: Path, total: int, make: Make, shard: Shard = WHOLE, description: str = "") -> Iterator[Tensor]:
    """The first `total` items, a chunk at a time. An item must not depend on its chunk: then neither kills nor shards
    change it."""
    firsts = range(0, total, CHUNK)[shard.rank :: shard.of]
    with progress(sum(min(CHUNK, total - first) for first in firsts), description, "item") as bar:
        for first in firsts:
            count = min(CHUNK, total - first)
            items = chunk(folder, first, count, make)
            bar.update(count)
            yield items
