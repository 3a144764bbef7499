"""Spectral normalisation: the norm is the largest singular value, its derivative that of the usual form."""

import torch
from torch.func import functional_call

from eblvm.engine.nets.spectral import Spectral, power_iteration


def converged(layer: Spectral, weight: torch.Tensor) -> torch.Tensor:
    buffers = {"u": torch.randn(len(weight), dtype=weight.dtype)}
    for _ in range(500):
        buffers = power_iteration({"weight": weight}, buffers)
    return buffers["u"]


def test_weight_has_spectral_norm_one() -> None:
    torch.manual_seed(0)
    weight, bias = torch.randn(5, 3, 4, 4, dtype=torch.float64), torch.zeros(5, dtype=torch.float64)
    layer = Spectral(3, 5, 4)
    u = converged(layer, weight)
    x = torch.eye(48, dtype=torch.float64).view(48, 3, 4, 4)
    normalised = functional_call(layer, {"weight": weight, "bias": bias, "u": u}, (x,)).view(48, 5)
    assert torch.linalg.matrix_norm(normalised, 2).item() - 1 < 1e-10
    torch.testing.assert_close(normalised.T, weight.flatten(1) / torch.linalg.matrix_norm(weight.flatten(1), 2))


def test_derivative_is_that_of_torchs_two_constant_vectors() -> None:
    torch.manual_seed(1)
    layer = torch.nn.utils.parametrizations.spectral_norm(torch.nn.Linear(4, 3).double(), n_power_iterations=1)
    layer.eval()
    norm = layer.parametrizations.weight[0]
    weight = layer.parametrizations.weight.original
    with torch.no_grad():  # torch's own two vectors at their fixed point
        u, _, vh = torch.linalg.svd(weight)
        norm._u.copy_(u[:, 0])
        norm._v.copy_(vh[0])
    x = torch.randn(7, 4, dtype=torch.float64)
    (expected,) = torch.autograd.grad(layer(x).square().sum(), weight)
    own = weight.detach().clone().requires_grad_()
    parameters = {"weight": own, "bias": layer.bias.detach(), "u": norm._u.clone()}
    (got,) = torch.autograd.grad(functional_call(Spectral(4, 3), parameters, (x,)).square().sum(), own)
    torch.testing.assert_close(got, expected)


def test_power_iteration_leaves_other_buffers_alone() -> None:
    buffers = {"net.0.u": torch.ones(3), "net.1.mean": torch.ones(3)}
    moved = power_iteration({"net.0.weight": torch.diag(torch.tensor([1.0, 2, 3]))}, buffers)
    assert moved["net.1.mean"] is buffers["net.1.mean"]
    torch.testing.assert_close(moved["net.0.u"], torch.nn.functional.normalize(torch.tensor([1.0, 4, 9]), dim=0))
    assert torch.equal(buffers["net.0.u"], torch.ones(3))
