"""What is given to apex's kernel, by a stand-in with its checks: types, orders in memory, and the flag of no step."""

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from eblvm.engine.optim.adam import Adam
from eblvm.engine.optim.apex import Apex
from eblvm.engine.optim.base import Moments, Weights
from tests.engine.optim import amp_c

SHAPES = {"w": (4, 3, 3, 3), "b": (4,), "c": ()}
SETTINGS = {"eps_root": 0.0, "weight_decay": 0.1, "clip_norm": 0.5, "average": 0.9}


@pytest.fixture(autouse=True)
def apex_on_the_host() -> Iterator[None]:
    with amp_c.installed():
        yield


def given(last: bool = False) -> tuple[Weights, dict[str, Tensor]]:
    """Return weights after one step, whose kernel is in the order of images if `last`, and a gradient in another."""
    generator = torch.Generator().manual_seed(0)
    trees = [{k: torch.randn(s, generator=generator) for k, s in SHAPES.items()} for _ in range(5)]
    p, g, m, v, average = trees
    v = {k: x.abs() for k, x in v.items()}
    if last:
        for tree in (p, m, v, average):
            tree["w"] = tree["w"].contiguous(memory_format=torch.channels_last)
    return Weights(p, Moments(m, v, torch.tensor(1.0)), average), g


@pytest.mark.parametrize("last", [False, True])
def test_the_step_is_adams(last: bool) -> None:
    lr = torch.tensor(0.1)
    weights, gradient = given()
    expected, expected_norm = Adam(**SETTINGS).move(weights, gradient, lr)
    weights, gradient = given(last)
    moved, norm = Apex(**SETTINGS).move(weights, gradient, lr, in_place=True)
    torch.testing.assert_close(moved, expected)
    torch.testing.assert_close(norm, expected_norm)
    assert moved.params["w"] is weights.params["w"]


@pytest.mark.parametrize("go", [False, True])
def test_a_flag_on_the_device_stops_the_step(go: bool) -> None:
    weights, gradient = given()
    optimizer, lr = Apex(**SETTINGS), torch.tensor(0.1)
    if go:
        expected, _ = optimizer.move(given()[0], given()[1], lr, in_place=True)
    else:
        expected, gradient["b"][1] = given()[0], torch.inf
    moved, norm = optimizer.move(weights, gradient, lr, in_place=True, go=torch.tensor(go))
    torch.testing.assert_close(moved, expected, rtol=0, atol=0)
    assert bool(norm.isfinite()) == go
