"""The Triton sliced score matching terms against torch's derivatives of the definition."""

import pytest
import torch

from eblvm.kernels import sliced_hvp
from eblvm.kernels.runtime import tiles
from eblvm.kernels.sliced_hvp import reference, triton
from tests.kernels.comparison import assert_close
from tests.kernels.grbm_cases import HALF_TOLERANCE, TOLERANCE, derivatives, inputs

# The interpreter is slow, and needs time for every tile.
SIZES = [(1, 1, 1), (63, 2, 4), (3, 100, 5), (2, 3, 257), (2, 257, 3), (0, 3, 2)]


def check(v, u, *parameters, tolerance, of_points=False) -> None:
    """In the parameters alone, where both orders are one launch; with `of_points` also in v and u."""

    def through(*tensors):
        return sliced_hvp._value(triton, *(tensors if of_points else (v, u, *tensors)))

    def plain(*tensors):
        return reference.value(*(tensors if of_points else (v, u, *tensors)))

    wanted = (v, u, *parameters) if of_points else parameters
    assert_close(derivatives(through, *wanted), derivatives(plain, *wanted), tolerance)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_value_and_derivatives(size, dtype, nan_filled) -> None:
    v, *parameters, u = inputs(size, dtype, M=2)
    check(v, u, *parameters, tolerance=TOLERANCE[dtype])


@pytest.mark.parametrize("split", [1, 3])
def test_replicas_and_parts_of_a_split(split, split_in, nan_filled) -> None:
    split_in(split)
    v, *parameters, u = inputs((35, 3, 40), replicas=(2,), M=3)
    check(v, u, *parameters, tolerance=1e-11)


@pytest.mark.parametrize("fits", [True, False])
def test_derivatives_in_points_and_directions(fits, monkeypatch, nan_filled) -> None:
    if not fits:
        monkeypatch.setitem(tiles.MOST_VISIBLE, 8, 4)
    v, *parameters, u = inputs((3, 5, 7), replicas=(2,), M=3)
    check(v, u, *parameters, tolerance=1e-11, of_points=True)


def test_non_contiguous_inputs() -> None:
    v, *parameters, u = inputs((7, 6, 5), M=2)
    tensors = (v, u, *parameters)
    strided = [torch.stack([t, t], -1)[..., 0] for t in tensors]
    assert_close(triton.value(*strided)[:2], reference.value(*tensors)[:2], 1e-12)
    check(*strided, tolerance=1e-12)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_half_precision_sums_in_float32(dtype) -> None:
    v, *parameters, u = inputs((3, 20, 10), dtype, M=2)
    got = triton.value(v, u, *parameters)[:2]
    expected = reference.value(*(t.float() for t in (v, u, *parameters)))[:2]
    assert_close([t.float() for t in got], expected, HALF_TOLERANCE[dtype])
