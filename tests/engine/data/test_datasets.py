"""The recipes' data sets."""

import torch

from eblvm.engine.data import datasets


def test_the_4x4_board_covers_its_dark_cells_evenly() -> None:
    data = datasets.points("checkerboard4")
    assert [len(part) for part in data[:3]] == [60_000, 10_000, 10_000]
    column, row = (torch.floor(data.train / 2).long() + 2).T
    assert column.min() == row.min() == 0
    assert column.max() == row.max() == 3
    assert ((column + row) % 2 == 0).all()
    counts = torch.bincount(4 * column + row, minlength=16)
    counts = counts[counts > 0]
    assert len(counts) == 8
    assert (counts - 7500).abs().max() < 5 * 7500**0.5


def test_digits() -> None:
    data = datasets.digits()
    assert [tuple(part.shape) for part in data[:3]] == [(1400, 64), (200, 64), (197, 64)]
    assert data.train.min() == 0
    assert data.train.max() == 1
