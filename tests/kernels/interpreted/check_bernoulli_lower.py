"""The lower step's Triton kernels against torch's derivatives of the definition."""

import pytest
import torch

from eblvm.kernels.bernoulli_lower import triton
from tests.kernels.bernoulli_cases import (
    NOISES,
    SIZES,
    TOLERANCE,
    by_autograd,
    derivatives,
    inputs,
    noise_of,
)
from tests.kernels.comparison import assert_close


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("size", [*SIZES, (3, 5, 7)], ids=str)
@pytest.mark.parametrize("noise", NOISES)
def test_value_and_derivatives(noise, size, dtype, nan_filled) -> None:
    logits, x = inputs(size, dtype)
    n = noise_of(noise, logits)
    assert_close(derivatives(triton, logits, x, n), by_autograd(logits, x, n), TOLERANCE[dtype])


@pytest.mark.parametrize("noise", NOISES)
def test_non_contiguous_inputs(noise) -> None:
    logits, x = (t.transpose(0, 1)[::2] for t in inputs((9, 14)))
    n = noise_of(noise, logits)
    assert_close(derivatives(triton, logits, x, n), by_autograd(logits.contiguous(), x.contiguous(), n), 1e-12)


def test_half_precision_inputs_are_computed_in_float32() -> None:
    logits, x = inputs((3, 100), torch.bfloat16)
    got = triton.value(logits, x, None, None, 0, 0, 0, 1.0)
    expected = by_autograd(logits.float(), x.float(), None)[0]
    torch.testing.assert_close(got.float(), expected, rtol=1e-2, atol=1e-2 * float(expected.abs().max()))
