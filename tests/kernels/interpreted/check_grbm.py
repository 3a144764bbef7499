"""The Triton energy and score of a GRBM against torch's derivatives of the definition."""

import pytest
import torch

from eblvm.kernels import grbm
from eblvm.kernels.grbm import reference, triton
from tests.kernels.grbm_cases import TOLERANCE, assert_close, derivatives, inputs

# A row is a program, which the interpreter takes a while for.
SIZES = [(1, 1, 1), (2, 63, 5), (17, 100, 257), (3, 2, 4), (0, 3, 2)]
GIVEN = pytest.mark.parametrize("given", [True, False], ids=["energy", "free-energy"])


def through(*tensors):
    return grbm._value(triton, *tensors)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("replicas", [(), (2,)], ids=str)
@GIVEN
def test_value_and_derivatives(given, replicas, size, dtype, nan_filled) -> None:
    *tensors, h = inputs(size, dtype, replicas)
    tensors = [*tensors, h if given else None]
    assert_close(derivatives(through, *tensors), derivatives(reference.value, *tensors), TOLERANCE[dtype])


@GIVEN
def test_non_contiguous_inputs(given) -> None:
    *tensors, h = inputs((7, 6, 5))
    tensors = [*tensors, h if given else None]
    strided = [t if t is None else torch.stack([t, t], -1)[..., 0] for t in tensors]
    assert_close(derivatives(through, *strided), derivatives(reference.value, *tensors), 1e-12)


def test_half_precision_inputs_are_computed_in_float32() -> None:
    tensors = inputs((3, 20, 10), torch.bfloat16)[:-1]
    got = triton.value(*tensors, None)
    expected = reference.value(*(t.float() for t in tensors), None)
    for g, e in zip(got, expected, strict=True):
        torch.testing.assert_close(g.float(), e, rtol=3e-2, atol=3e-2 * float(e.abs().max()))
