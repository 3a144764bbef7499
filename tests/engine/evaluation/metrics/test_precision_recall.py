"""Precision and recall against loops over all pairs, and where they are known."""

import pytest
import torch
from torch import Tensor

from eblvm.engine.evaluation.metrics import precision_recall as module
from eblvm.engine.evaluation.metrics.precision_recall import precision_recall
from eblvm.kernels import philox
from eblvm.kernels.philox import Key


def by_hand(points: Tensor, others: Tensor, k: int) -> float:
    """The fraction of points that are no farther from one of the others than that one's k-th neighbour is."""
    inside = 0
    for x in points.double():
        for j, y in enumerate(others.double()):
            to_others = sorted(float((y - z).norm()) for i, z in enumerate(others.double()) if i != j)
            if float((x - y).norm()) <= to_others[k - 1]:
                inside += 1
                break
    return inside / len(points)


@pytest.mark.parametrize(("m", "n", "width", "k"), [(30, 41, 2, 3), (17, 25, 3, 1), (40, 12, 5, 4)])
def test_against_loops(m: int, n: int, width: int, k: int, monkeypatch) -> None:
    monkeypatch.setattr(module, "ROWS", 7)
    x = philox.normal(Key(1, 0), 0, m, (width,)) + 3
    y = philox.normal(Key(2, 0), 0, n, (width,)) + 4.5
    found = precision_recall(x, y, k)
    assert found is not None
    assert found.precision == by_hand(x, y, k)
    assert found.recall == by_hand(y, x, k)
    assert 0 < found.precision < 1
    assert 0 < found.recall < 1


def test_the_same_set_and_sets_far_apart() -> None:
    x = philox.normal(Key(1, 0), 0, 50, (8,)) + 1000
    assert precision_recall(x, x) == (1, 1)
    assert precision_recall(x, x + 100) == (0, 0)


def test_samples_of_one_mode_are_precise_and_cover_little() -> None:
    real = philox.normal(Key(1, 0), 0, 200, (2,)) + torch.tensor([10.0, 0.0]) * (torch.arange(200) % 2)[:, None]
    one = philox.normal(Key(2, 0), 0, 200, (2,)) * 0.5
    found = precision_recall(one, real)
    assert found is not None
    assert found.precision > 0.95
    assert found.recall < 0.5


def test_repeated_images_have_balls_of_no_width() -> None:
    """All radii are 0: a sample is within only where it is the same."""
    real = (philox.normal(Key(1, 0), 0, 2, (64,)) * 7 + 3).repeat(4, 1)
    assert precision_recall(real[:5], real) == (1, 1)
    assert precision_recall(real + 0.01, real) == (0, 0)


def test_too_few_have_none() -> None:
    x = torch.rand(3, 2)
    assert precision_recall(x, torch.rand(9, 2)) is None
