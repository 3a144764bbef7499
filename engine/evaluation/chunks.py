"""Long work in pieces that are kept as files: a killed evaluation continues, and several processes can share one.

Piece i holds items i * PIECE and on. A file exists completely or not at all.
"""

import io
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from eblvm.engine.training.checkpoint import write_atomic
from eblvm.engine.training.log import progress

PIECE = 100  # items: minutes of sampling on a CPU
Make = Callable[[int, int], Tensor]  # (first, count) -> items first .. first + count - 1


class Share(NamedTuple):
    """This process's share of the pieces: every `of`-th from `rank` on."""

    rank: int = 0
    of: int = 1


WHOLE = Share()


def piece(folder: Path, first: int, count: int, make: Make) -> Tensor:
    """Items first .. first + count - 1 of one piece, from its file, or made and kept if it has fewer."""
    path = folder / f"piece-{first // PIECE:05d}.pt"
    found = torch.load(path, weights_only=True) if path.is_file() else None
    if found is None or len(found) < count:
        found = make(first, count)
        buffer = io.BytesIO()
        torch.save(found, buffer)
        folder.mkdir(parents=True, exist_ok=True)
        write_atomic(path, buffer.getvalue())
    return found[:count]


def pieces(folder: Path, total: int, make: Make, share: Share = WHOLE, description: str = "") -> Iterator[Tensor]:
    """The first `total` items, a piece at a time.

    What an item is must not depend on the piece it falls into; then neither kills nor shares change it.
    """
    firsts = range(0, total, PIECE)[share.rank :: share.of]
    with progress(sum(min(PIECE, total - first) for first in firsts), description, "item") as bar:
        for first in firsts:
            count = min(PIECE, total - first)
            found = piece(folder, first, count, make)
            bar.update(count)
            yield found
