"""Chunks survive a kill, can be shared, and are made once."""

from pathlib import Path

import pytest
import torch
from torch import Tensor

from eblvm.engine.evaluation.sample_chunks import CHUNK, Shard, chunks

TOTAL = 2 * CHUNK + 30


class Maker:
    """Item i is (i, i^2); `limit` is how many calls it survives."""

    def __init__(self, limit: int = 99):
        self.calls: list[tuple[int, int]] = []
        self.limit = limit

    def __call__(self, first: int, count: int) -> Tensor:
        if len(self.calls) == self.limit:
            raise KeyboardInterrupt
        self.calls.append((first, count))
        i = torch.arange(first, first + count)
        return torch.stack([i, i * i], 1)


def gathered(folder: Path, maker: Maker, total: int = TOTAL) -> Tensor:
    return torch.cat(list(chunks(folder, total, maker)))


EXPECTED = Maker()(0, TOTAL)


def test_a_killed_run_continues(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        gathered(tmp_path, Maker(limit=1))
    rest = Maker()
    assert torch.equal(gathered(tmp_path, rest), EXPECTED)
    assert rest.calls == [(CHUNK, CHUNK), (2 * CHUNK, 30)]
    nothing = Maker()
    assert torch.equal(gathered(tmp_path, nothing), EXPECTED)
    assert nothing.calls == []


def test_more_and_fewer_items_use_what_is_there(tmp_path: Path) -> None:
    gathered(tmp_path, Maker(), 130)
    more = Maker()
    assert torch.equal(gathered(tmp_path, more), EXPECTED)
    assert more.calls == [(CHUNK, CHUNK), (2 * CHUNK, 30)]  # the short chunk is made again, the whole one is not
    fewer = Maker()
    assert torch.equal(gathered(tmp_path, fewer, 55), EXPECTED[:55])
    assert fewer.calls == []


def test_shards_make_disjoint_chunks_that_add_up(tmp_path: Path) -> None:
    firsts = []
    for rank in range(2):
        maker = Maker()
        list(chunks(tmp_path, TOTAL, maker, Shard(rank, 2)))
        firsts.append([first for first, _ in maker.calls])
    assert firsts == [[0, 2 * CHUNK], [CHUNK]]
    nothing = Maker()
    assert torch.equal(gathered(tmp_path, nothing), EXPECTED)
    assert nothing.calls == []
