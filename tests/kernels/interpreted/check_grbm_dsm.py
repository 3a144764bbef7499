"""The Triton denoising step against the reference."""

import pytest
import torch

from eblvm.kernels.grbm_dsm import reference, triton
from eblvm.kernels.runtime import tiles
from tests.kernels.comparison import assert_close
from tests.kernels.grbm_cases import HALF_TOLERANCE, TOLERANCE, inputs

SIZES = [(1, 1, 1), (63, 2, 4), (3, 100, 5), (2, 3, 257), (2, 257, 3)]


def arguments(size, dtype=torch.float64, replicas=()):
    v, *parameters, eps = inputs(size, dtype, replicas, M=1)
    return v, eps.squeeze(-3), *parameters, 0.3


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_loss_and_gradients(size, dtype, nan_filled) -> None:
    given = arguments(size, dtype)
    assert_close(triton.grbm_dsm(*given), reference.grbm_dsm(*given), TOLERANCE[dtype])


@pytest.mark.parametrize("split", [1, 3])
def test_replicas_and_parts_of_a_split(split, split_in, nan_filled) -> None:
    split_in(split)
    given = arguments((35, 3, 40), replicas=(2,))
    assert_close(triton.grbm_dsm(*given), reference.grbm_dsm(*given), 1e-11)


def test_more_visible_units_than_fit(monkeypatch, nan_filled) -> None:
    monkeypatch.setitem(tiles.MOST_VISIBLE, 8, 4)
    given = arguments((3, 5, 7), replicas=(2,))
    assert_close(triton.grbm_dsm(*given), reference.grbm_dsm(*given), 1e-11)


def test_non_contiguous_inputs() -> None:
    *tensors, sigma = arguments((7, 6, 5))
    strided = [torch.stack([t, t], -1)[..., 0] for t in tensors]
    assert_close(triton.grbm_dsm(*strided, sigma), reference.grbm_dsm(*tensors, sigma), 1e-12)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_half_precision_sums_in_float32(dtype) -> None:
    given = arguments((3, 20, 10), dtype)
    got = triton.grbm_dsm(*given)
    expected = reference.grbm_dsm(*(t.float() for t in given[:-1]), 0.3)
    assert_close([t.float() for t in got], expected, HALF_TOLERANCE[dtype])
