"""The Triton denoising step against the reference."""

import pytest
import torch

from eblvm.kernels.grbm_dsm import reference, triton
from tests.kernels.grbm_cases import TOLERANCE, assert_close, inputs

SIZES = [(1, 1, 1), (2, 63, 5), (17, 100, 257), (3, 2, 4)]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("replicas", [(), (2,)], ids=str)
def test_loss_and_gradients(replicas, size, dtype, nan_filled) -> None:
    v, *parameters, eps = inputs(size, dtype, replicas, M=1)
    arguments = (v, eps.squeeze(-3), *parameters, 0.3)
    assert_close(triton.grbm_dsm(*arguments), reference.grbm_dsm(*arguments), TOLERANCE[dtype])


def test_non_contiguous_inputs() -> None:
    v, *parameters, eps = inputs((7, 6, 5), M=1)
    tensors = (v, eps.squeeze(-3), *parameters)
    strided = [torch.stack([t, t], -1)[..., 0] for t in tensors]
    assert_close(triton.grbm_dsm(*strided, 0.3), reference.grbm_dsm(*tensors, 0.3), 1e-12)
