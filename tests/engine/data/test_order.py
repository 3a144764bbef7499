"""The order of samples: every epoch a permutation, the position a pure function of the step."""

import pytest
import torch

from eblvm.engine.data.input import Order
from eblvm.engine.errors import UserError


def test_every_epoch_sees_each_sample_once() -> None:
    order = Order(torch.tensor(3), size=10, batch=4)  # batches cross the epochs' borders
    stream = torch.cat([order.indices(step) for step in range(15)])
    epochs = stream.view(6, 10)
    for epoch in epochs:
        assert sorted(epoch.tolist()) == list(range(10))
    assert not torch.equal(epochs[0], epochs[1])


def test_position_depends_on_the_step_only() -> None:
    running = Order(torch.tensor(3), 10, 4)
    expected = [running.indices(step).tolist() for step in range(12)]
    for step in (7, 2, 11, 0):
        assert Order(torch.tensor(3), 10, 4).indices(step).tolist() == expected[step]


def test_a_batch_can_span_several_epochs() -> None:
    assert sorted(Order(torch.tensor(0), 3, 7).indices(1).tolist()).count(0) >= 2


def test_replicas_have_their_own_order() -> None:
    together = Order(torch.tensor([5, 6]), 20, 8).indices(1)
    for row, seed in zip(together, (5, 6), strict=True):
        assert row.tolist() == Order(torch.tensor(seed), 20, 8).indices(1).tolist()


def test_ranks_have_the_slices_of_the_global_batch() -> None:
    order = Order(torch.tensor([5, 6]), 20, 12)
    for step in range(5):
        for world in (1, 2, 3, 4):
            slices = [order.indices(step, rank, world) for rank in range(world)]
            assert torch.equal(torch.cat(slices, -1), order.indices(step))
    with pytest.raises(UserError, match="got batch=12 for 5 processes"):
        order.indices(0, 0, 5)
