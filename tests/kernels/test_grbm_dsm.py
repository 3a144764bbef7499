"""The fused denoising step: against autograd of the definition, for every backend."""

import pytest
import torch
from torch import Tensor

from eblvm.kernels import grbm_dsm as package
from eblvm.kernels.grbm.reference import value
from eblvm.kernels.grbm_dsm import grbm_dsm, reference
from tests.kernels.comparison import assert_close
from tests.kernels.grbm_cases import SIZES, TOLERANCE, assert_flops_are_those_of_its_products, inputs

needs_native = pytest.mark.skipif(not package._NATIVE, reason="the native library is not built")
BACKENDS = [
    pytest.param(reference, id="reference"),
    pytest.param(torch.ops.eblvm, id="native", marks=needs_native),
]
SIGMA = 0.3


def case(*arguments, **options) -> list[Tensor]:
    """v, eps, W, b, c, log_sigma."""
    v, *parameters, eps = inputs(*arguments, M=1, **options)
    return [v, eps.squeeze(-3), *parameters]


def by_autograd(v: Tensor, eps: Tensor, *parameters: Tensor) -> list[Tensor]:
    leaves = [p.detach().requires_grad_() for p in parameters]
    score = value(v + SIGMA * eps, *leaves, None)[1]
    loss = 0.5 * (score + eps / SIGMA).square().sum(-1).mean(-1)
    return [loss.detach(), *torch.autograd.grad(loss.sum(), leaves)]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("size", SIZES[:-1], ids=str)
@pytest.mark.parametrize("replicas", [(), (3,)], ids=str)
@pytest.mark.parametrize("backend", BACKENDS)
def test_loss_and_gradients(backend, replicas, size, dtype, nan_filled) -> None:
    tensors = case(size, dtype, replicas)
    assert_close(backend.grbm_dsm(*tensors, SIGMA), by_autograd(*tensors), TOLERANCE[dtype])


@pytest.mark.parametrize("backend", BACKENDS)
def test_non_contiguous_inputs(backend) -> None:
    tensors = case((7, 6, 5))
    strided = [torch.stack([t, t], -1)[..., 0] for t in tensors]
    assert_close(backend.grbm_dsm(*strided, SIGMA), by_autograd(*tensors), 1e-12)


def test_vmap_is_a_replica_axis() -> None:
    tensors = case((7, 6, 5), replicas=(3,))
    loss, gradients = grbm_dsm(*tensors, SIGMA)
    mapped_loss, mapped = torch.vmap(lambda *t: grbm_dsm(*t, SIGMA))(*tensors)
    assert_close([mapped_loss, *mapped], [loss, *gradients], 1e-13)


def test_inputs_are_not_changed() -> None:
    tensors = case((7, 6, 5))
    before = [t.clone() for t in tensors]
    grbm_dsm(*tensors, SIGMA)
    assert all(torch.equal(a, b) for a, b in zip(tensors, before, strict=True))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"eps": torch.zeros(5, 3)}, r"grbm_dsm got eps of shape \(5, 3\); expected \(5, 4\)"),
        ({"eps": torch.zeros(5, 4).double()}, r"eps of dtype torch\.float64; expected that of W, torch\.float32"),
        ({"b": torch.zeros(4, device="meta")}, "b of device meta; expected that of W, cpu"),
        ({"v": torch.zeros(0, 4), "eps": torch.zeros(0, 4)}, "a batch of 0 samples; expected at least 1"),
        ({"sigma": 0.0}, r"sigma=0\.0; expected a positive noise level"),
        ({"c": torch.zeros(3).requires_grad_()}, "c that requires grad"),
    ],
)
def test_errors_say_what_was_got(change, message) -> None:
    names = ("v", "eps", "W", "b", "c", "log_sigma")
    arguments = dict(zip(names, case((5, 4, 3), torch.float32), strict=True)) | {"sigma": SIGMA} | change
    with pytest.raises(ValueError, match=message):
        grbm_dsm(**arguments)


@needs_native
def test_flops() -> None:
    tensors = case((40, 41, 43))
    assert_flops_are_those_of_its_products(lambda: grbm_dsm(*tensors, SIGMA))
