"""The digits: their splits, with labels, flat and as images."""

import torch

from eblvm.engine.data.sets.digits import Digits


def test_digits() -> None:
    data = Digits().load(images=False)
    assert [tuple(part.shape) for part in data[:3]] == [(1400, 64), (200, 64), (197, 64)]
    assert data.train.min() == 0
    assert data.train.max() == 1
    assert data.train_labels is not None
    assert data.test_labels is not None
    assert (len(data.train_labels), len(data.test_labels)) == (1400, 197)
    images = Digits().load(images=True)
    assert images.image_shape is None
    assert torch.equal(images.test.flatten(1), data.test)
