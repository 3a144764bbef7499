"""log Z of 2-D models by a grid, against a GRBM's exact one and a linear-Gaussian model in closed form."""

import math

import pytest
import torch
from torch import Tensor, nn

from eblvm.engine.errors import UserError
from eblvm.engine.evaluation.metrics.grid_likelihood import grid_log_likelihood
from eblvm.engine.evaluation.metrics.likelihood import exact_log_z, log_likelihood
from eblvm.engine.nets.base import Separable
from eblvm.engine.nets.grbm import GRBM
from eblvm.engine.nets.posteriors import Gaussian
from eblvm.kernels import philox
from eblvm.kernels.philox import Key

PRECISION, MEAN, STD_H = torch.tensor([4.0, 0.25]).double(), torch.tensor([1.0, -2.0]).double(), 0.3


class LinearGaussian(nn.Module):
    """E(v, h) = 1/2 sum precision (v - mean)^2 + 1/2 |h - A v|^2 / std^2."""

    def __init__(self, latent: int):
        super().__init__()
        self.A = nn.Parameter(0.5 * torch.ones(2, latent).double())

    def forward(self, v: Tensor, h: Tensor) -> Tensor:
        visible = 0.5 * (PRECISION * (v - MEAN).square()).sum(-1)
        return visible + 0.5 * ((h - v @ self.A) / STD_H).square().sum(-1)

    def log_z(self) -> float:
        latent = self.A.shape[1]
        return (1 + latent / 2) * math.log(2 * math.pi) - 0.5 * float(PRECISION.log().sum()) + latent * math.log(STD_H)


def points(n: int) -> Tensor:
    """Samples of the linear-Gaussian model's marginal, N(mean, 1 / precision)."""
    return MEAN + philox.normal(Key(1, 0), 0, n, (2,), dtype=torch.float64) * PRECISION**-0.5


def near_posterior(latent: int) -> tuple[Gaussian, dict[str, Tensor]]:
    """q with means off by 0.1 of the true standard deviation of h, and 1.2 times as wide."""
    net = nn.Linear(2, 2 * latent)
    phi = {
        "net.weight": torch.cat([0.5 * torch.ones(latent, 2), torch.zeros(latent, 2)]).double(),
        "net.bias": torch.cat([0.1 * STD_H * torch.ones(latent), math.log(1.2 * STD_H) * torch.ones(latent)]).double(),
    }
    return Gaussian(net, latent), phi


@pytest.mark.parametrize("latent", [1, 2, 3])
def test_linear_gaussian(latent: int) -> None:
    """h by quadrature (H = 1, 2) and by importance sampling (H = 3)."""
    energy, v = Separable(nn.Identity(), LinearGaussian(latent)), points(500)
    theta = {k: p.detach() for k, p in energy.named_parameters()}
    found = grid_log_likelihood(energy, theta, v, *near_posterior(latent), size=120)
    log_density = -0.5 * (PRECISION * (v - MEAN).square()).sum(-1) + 0.5 * PRECISION.log().sum() - math.log(2 * math.pi)
    expected, log_z = float(log_density.mean()), energy.head_net.log_z()
    if latent < 3:
        assert found.standard_error == 0
        assert abs(found.log_z - log_z) < 1e-6
        assert abs(found.log_likelihood - expected) < 1e-6
    else:
        assert 0 < found.standard_error < 0.01
        assert abs(found.log_z - log_z) < 4 * found.standard_error
        assert abs(found.log_likelihood - expected) < 4 * found.standard_error
    for (low, high), mean, precision in zip(found.box, MEAN, PRECISION, strict=True):
        reach = float(precision) ** -0.5
        assert low < mean - 5 * reach
        assert high > mean + 5 * reach
        assert high - low < 16 * reach


def test_grbm() -> None:
    energy = GRBM(2, 4)
    theta = {
        "W": 1.5 * philox.normal(Key(2, 0), 0, 2, (4,), dtype=torch.float64),
        "b": torch.tensor([0.5, -0.3]).double(),
        "c": philox.normal(Key(2, 0), 1, 4, dtype=torch.float64),
        "log_sigma": torch.tensor([-0.4, 0.2]).double(),
    }
    v = philox.normal(Key(3, 0), 0, 200, (2,), dtype=torch.float64)
    found, exact = grid_log_likelihood(energy, theta, v), exact_log_z(energy, theta).value
    assert abs(found.log_z - exact) < 1e-6
    assert abs(found.log_likelihood - log_likelihood(energy, theta, v, exact)) < 1e-6
    assert found.standard_error == 0


class Flat(nn.Module):
    """An energy with no dependence on v, which has no density."""

    def forward(self, v: Tensor, h: Tensor) -> Tensor:
        return 0 * v.sum(-1) + 0.5 * h.square().sum(-1)


def test_refusals() -> None:
    energy = Separable(nn.Identity(), Flat())
    with pytest.raises(UserError, match=r"expected at most 1e-07; its density hardly falls off"):
        grid_log_likelihood(energy, {}, points(10), *near_posterior(1))
    with pytest.raises(UserError, match="no free energy: give its posterior and phi"):
        grid_log_likelihood(energy, {}, points(10))
    with pytest.raises(UserError, match=r"in the plane, \[n, 2\]; got samples of shape \[3\]"):
        grid_log_likelihood(energy, {}, torch.zeros(5, 3), *near_posterior(1))
