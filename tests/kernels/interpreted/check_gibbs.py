"""The Triton sweeps against the reference."""

import pytest
import torch

from eblvm.kernels.gibbs import reference, triton
from eblvm.kernels.runtime import tiles
from tests.kernels.gibbs_cases import drawn, inputs, raw, stream

# The interpreter is slow, and needs time for every tile.
SIZES = [(1, 1, 1), (63, 2, 4), (2, 63, 5), (2, 100, 5), (2, 3, 257), (0, 3, 2)]


@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("replicas", [(), (2,)], ids=str)
@pytest.mark.parametrize("kind", ["given", "drawn"])
def test_sweeps_equal_reference(kind, replicas, size, nan_filled) -> None:
    tensors, noise = inputs(size, replicas=replicas), stream(replicas)
    given = noise if kind == "drawn" else drawn(size, torch.float64, noise)
    got = triton.gibbs(*raw(tensors, given))
    torch.testing.assert_close(got, reference.gibbs(*raw(tensors, given)), rtol=1e-11, atol=1e-11)


def test_more_visible_units_than_fit(monkeypatch, nan_filled) -> None:
    monkeypatch.setitem(tiles.MOST_VISIBLE, 8, 4)
    arguments = raw(inputs((3, 5, 7)), stream())
    torch.testing.assert_close(triton.gibbs(*arguments), reference.gibbs(*arguments), rtol=1e-11, atol=1e-11)


def test_non_contiguous_inputs() -> None:
    size = (7, 5, 4)
    tensors = [torch.stack([t, t], -1)[..., 0] for t in inputs(size)]
    arguments = raw(tensors, stream())
    torch.testing.assert_close(triton.gibbs(*arguments), reference.gibbs(*arguments), rtol=1e-11, atol=1e-11)
