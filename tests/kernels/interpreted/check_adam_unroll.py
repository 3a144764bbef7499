"""The Triton Adam step and its reverse against torch's derivatives of the definition."""

import pytest
import torch

from eblvm.kernels.adam_unroll import triton
from tests.kernels.adam_cases import (
    ORDERS,
    SIZES,
    TOLERANCE,
    assert_close,
    check_in_place,
    derivatives,
    inputs,
    plain,
    through,
)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("replicas", [(), (3,)], ids=str)
def test_value_and_derivatives(replicas, size, dtype, nan_filled) -> None:
    tensors = inputs(size, dtype, replicas)
    assert_close(derivatives(through(triton), *tensors), derivatives(plain, *tensors), TOLERANCE[dtype])


def test_non_contiguous_inputs() -> None:
    *tensors, t, lr = inputs((8, 6))
    tensors = [x.T[::2] for x in tensors]
    expected = derivatives(plain, *(x.contiguous() for x in tensors), t, lr)
    assert_close(derivatives(through(triton), *tensors, t, lr), expected, 1e-12)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("replicas", [(), (3,)], ids=str)
@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("order", ORDERS)
def test_in_place(order, size, replicas, dtype) -> None:
    check_in_place(triton, size, dtype, replicas, ORDERS[order])
