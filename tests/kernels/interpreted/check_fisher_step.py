"""The Triton parts of a Fisher lower step against the reference."""

import pytest
import torch

from eblvm.kernels.fisher_step import reference, triton
from tests.kernels.comparison import assert_close
from tests.kernels.fisher_step_cases import SIZES, inputs, results


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("scale", [None, 8.0])
def test_values(size, dtype, scale, nan_filled) -> None:
    x = inputs(size, dtype)
    scale = None if scale is None else torch.tensor(scale, dtype=dtype)
    expected = results(reference, x, scale)
    assert_close(results(triton, x, scale), expected, 1e-12 if dtype == torch.float64 else 1e-5)


def test_outputs_of_16_bits(nan_filled) -> None:
    x = inputs(SIZES[2], torch.float32)
    half = x["out"].to(torch.float16)
    *others, bars = results(triton, x, None, half)
    *expected, wanted = results(reference, x, None, half)
    assert_close(others, expected, 1e-5)
    assert_close([bars], [wanted], 2e-3)
