"""The Triton energy and score of a GRBM against torch's derivatives of the definition."""

import pytest
import torch

from eblvm.bench.tools.traffic import count
from eblvm.kernels import grbm
from eblvm.kernels.grbm import reference, triton
from eblvm.kernels.runtime import tiles
from tests.kernels.comparison import assert_close
from tests.kernels.grbm_cases import HALF_TOLERANCE, TOLERANCE, derivatives, inputs

# The interpreter is slow, and needs time for every tile.
SIZES = [(1, 1, 1), (63, 2, 4), (3, 100, 5), (2, 3, 257), (2, 257, 3), (0, 3, 2)]
GIVEN = pytest.mark.parametrize("given", [True, False], ids=["energy", "free-energy"])


def through(*tensors):
    return grbm._value(triton, *tensors)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("size", SIZES, ids=str)
@GIVEN
def test_value_and_derivatives(given, size, dtype, nan_filled) -> None:
    *tensors, h = inputs(size, dtype)
    tensors = [*tensors, h if given else None]
    assert_close(derivatives(through, *tensors), derivatives(reference.value, *tensors), TOLERANCE[dtype])


@pytest.mark.parametrize("split", [3])
@GIVEN
def test_replicas_and_parts_of_a_split(given, split, split_in, nan_filled) -> None:
    split_in(split)
    *tensors, h = inputs((35, 3, 40), replicas=(2,))
    tensors = [*tensors, h if given else None]
    assert_close(derivatives(through, *tensors), derivatives(reference.value, *tensors), 1e-11)


def test_counted_traffic_is_every_tensor_once() -> None:
    *tensors, _ = inputs((35, 3, 40))
    results = tensors[0].nbytes + tensors[0][..., 0].nbytes  # the score and the energy
    traffic = count(lambda: triton.launch_rows(triton.FREE.value, *tensors))
    assert traffic == (1, sum(t.nbytes for t in tensors) + results)


@GIVEN
def test_more_visible_units_than_fit(given, monkeypatch, nan_filled) -> None:
    monkeypatch.setitem(tiles.MOST_VISIBLE, 8, 4)
    *tensors, h = inputs((3, 5, 7), replicas=(2,))
    tensors = [*tensors, h if given else None]
    assert_close(derivatives(through, *tensors), derivatives(reference.value, *tensors), 1e-11)


@GIVEN
def test_non_contiguous_inputs(given) -> None:
    *tensors, h = inputs((7, 6, 5))
    tensors = [*tensors, h if given else None]
    strided = [t if t is None else torch.stack([t, t], -1)[..., 0] for t in tensors]
    assert_close(derivatives(through, *strided), derivatives(reference.value, *tensors), 1e-12)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@GIVEN
def test_half_precision_sums_in_float32(given, dtype) -> None:
    *tensors, h = inputs((3, 20, 10), dtype)
    tensors = [*tensors, h if given else None]
    got = triton.value(*tensors)[:2]
    assert all(t.dtype == dtype for t in got)
    expected = reference.value(*(t if t is None else t.float() for t in tensors))[:2]
    assert_close([t.float() for t in got], expected, HALF_TOLERANCE[dtype])
