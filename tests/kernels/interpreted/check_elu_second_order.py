"""The Triton ELU against torch's derivatives of the definition."""

import pytest
import torch

from eblvm.kernels.elu_second_order import triton
from tests.kernels.elu_cases import SIZES, TOLERANCE, assert_close, by_autograd, derivatives, inputs


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_value_and_derivatives(size, dtype, nan_filled) -> None:
    tensors = inputs(size, dtype)
    assert_close(derivatives(triton, *tensors), by_autograd(*tensors), TOLERANCE[dtype])


def test_memory_orders() -> None:
    plain = inputs((2, 3, 5, 4))
    last = tuple(t.to(memory_format=torch.channels_last) for t in plain)
    got = derivatives(triton, *last)
    assert_close(got, by_autograd(*plain), 1e-13)
    assert all(t.is_contiguous(memory_format=torch.channels_last) for t in got)
    strided = tuple(torch.stack([t, t], -1)[..., 0] for t in plain)
    assert_close(derivatives(triton, *strided), by_autograd(*plain), 1e-13)


def test_half_precision_is_computed_in_float32() -> None:
    x = inputs((257,), torch.bfloat16)[0]
    expected = torch.where(x > 0, x.float(), torch.expm1(x.float().clamp(max=0))).to(torch.bfloat16)
    torch.testing.assert_close(triton.value(x, 1.0), expected, rtol=8e-3, atol=0)
