"""Nearest neighbours against sorting all distances."""

import torch

from eblvm.engine.evaluation.metrics.neighbours import neighbours
from eblvm.kernels import philox
from eblvm.kernels.philox import Key


def test_equals_sorting_all_distances() -> None:
    train = (philox.uniform(Key(1, 0), 0, 4500, (1, 2, 2)) * 255).byte()
    v = (philox.uniform(Key(2, 0), 0, 7, (1, 2, 2)) * 255).byte()
    found = neighbours(v, train, 3, 255)
    every = (v.double().flatten(1)[:, None] - train.double().flatten(1)).norm(dim=-1) / 255
    expected = every.sort(dim=1).values[:, :3]
    torch.testing.assert_close(found.distance, expected, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(every.gather(1, found.index), expected, rtol=1e-12, atol=1e-12)


def test_a_remembered_image_has_distance_zero() -> None:
    train = (philox.uniform(Key(1, 0), 0, 2500, (3, 4, 4)) * 255).byte()
    found = neighbours(train[[7, 2400]], train, 1, 255)
    assert found.distance.flatten().tolist() == [0.0, 0.0]
    assert found.index.flatten().tolist() == [7, 2400]
