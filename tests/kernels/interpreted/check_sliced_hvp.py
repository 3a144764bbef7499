"""The Triton sliced score matching terms against torch's derivatives of the definition."""

import pytest
import torch

from eblvm.kernels import sliced_hvp
from eblvm.kernels.sliced_hvp import reference, triton
from tests.kernels.grbm_cases import TOLERANCE, assert_close, derivatives, inputs

# A row is a program, which the interpreter takes a while for.
SIZES = [(1, 1, 1), (2, 63, 5), (17, 100, 257), (3, 2, 4), (0, 3, 2)]


def through(*tensors):
    return sliced_hvp._value(triton, *tensors)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize(("replicas", "M"), [((), 1), ((2,), 3)], ids=str)
def test_value_and_derivatives(replicas, M, size, dtype, nan_filled) -> None:
    v, *parameters, u = inputs(size, dtype, replicas, M=M)
    tensors = (v, u, *parameters)
    assert_close(derivatives(through, *tensors), derivatives(reference.value, *tensors), TOLERANCE[dtype])


def test_non_contiguous_inputs() -> None:
    v, *parameters, u = inputs((7, 6, 5), M=2)
    tensors = (v, u, *parameters)
    strided = [torch.stack([t, t], -1)[..., 0] for t in tensors]
    assert_close(derivatives(through, *strided), derivatives(reference.value, *tensors), 1e-12)
