"""A small GRBM by enumeration of h and by quadrature over v, written out here with nothing of the engine."""

import itertools
import math

import pytest
import torch
from torch import Tensor

from eblvm.engine.errors import UserError
from eblvm.engine.evaluation.metrics.likelihood import ais, exact_log_z
from eblvm.engine.nets.grbm import GRBM
from eblvm.kernels import philox
from eblvm.kernels.philox import Key

D, H = 2, 3
GRID = torch.linspace(-14, 14, 1401, dtype=torch.float64)


@pytest.fixture
def model() -> tuple[GRBM, dict[str, Tensor]]:
    energy = GRBM(D, H)
    theta = {k: p.double() for k, p in energy.initial(Key(1, 0)).items()}
    theta["W"] = 2 * theta["W"]
    theta["log_sigma"] = torch.tensor([0.2, -0.3], dtype=torch.float64)
    return energy, theta


def energies(theta: dict[str, Tensor], v: Tensor) -> Tensor:
    """E(v, h) for every h, [B, 2^H], by the definition."""
    columns = []
    for h in itertools.product((0.0, 1.0), repeat=H):
        e = torch.zeros(len(v), dtype=torch.float64)
        for d in range(D):
            e += 0.5 * (v[:, d] - theta["b"][d]) ** 2 / math.exp(2 * theta["log_sigma"][d])
            for j in range(H):
                e -= v[:, d] * theta["W"][d, j] * h[j]
        columns.append(e - sum(theta["c"][j] * h[j] for j in range(H)))
    return torch.stack(columns, 1)


def states() -> Tensor:
    return torch.tensor(list(itertools.product((0.0, 1.0), repeat=H)), dtype=torch.float64)


@pytest.fixture
def v() -> Tensor:
    return philox.normal(Key(2, 0), 0, 6, (D,), dtype=torch.float64)


def test_energy(model, v) -> None:
    energy, theta = model
    by_state = torch.stack([energy.at(theta).energy(v, h.expand(len(v), H)) for h in states()], 1)
    torch.testing.assert_close(by_state, energies(theta, v))


def test_energy_of_many_samples_shares_the_features(model, v) -> None:
    energy, theta = model
    h = states()[:, None].expand(-1, len(v), -1)  # [L, B, H]
    torch.testing.assert_close(energy.at(theta).energy(v, h), energies(theta, v).T)


def test_free_energy(model, v) -> None:
    energy, theta = model
    torch.testing.assert_close(energy.at(theta).free_energy(v), -torch.logsumexp(-energies(theta, v), 1))


def test_posterior(model, v) -> None:
    energy, theta = model
    posterior = torch.softmax(-energies(theta, v), 1)
    torch.testing.assert_close(torch.sigmoid(energy.at(theta).posterior_logits(v)), posterior @ states())


def test_score_and_laplacian(model, v) -> None:
    energy, theta = model

    def log_p(x: Tensor) -> Tensor:
        return torch.logsumexp(-energies(theta, x[None]), 1)[0]

    score = torch.stack([torch.func.grad(log_p)(x) for x in v])
    trace = torch.stack([torch.func.hessian(log_p)(x).trace() for x in v])
    torch.testing.assert_close(energy.at(theta).score(v), score)
    torch.testing.assert_close(energy.at(theta).laplacian(v), trace)


def test_log_z(model) -> None:
    energy, theta = model
    cell = float(GRID[1] - GRID[0]) ** 2
    v = torch.stack(torch.meshgrid(GRID, GRID, indexing="ij"), -1).view(-1, D)
    expected = torch.logsumexp(-energies(theta, v).flatten(), 0) + math.log(cell)
    assert exact_log_z(energy, theta).value == pytest.approx(float(expected), abs=1e-8)


def test_conditional_v(model) -> None:
    """p(v|h) is normal with the mean and deviation claimed: -E(v,h) differs from its log density by a constant."""
    energy, theta = model
    v = philox.normal(Key(3, 0), 0, 8, (D,), dtype=torch.float64)
    for h in states():
        mean, sigma = energy.at(theta).conditional_v(h[None])
        log_normal = (-0.5 * ((v - mean) / sigma) ** 2).sum(-1)
        difference = -energy.at(theta).energy(v, h.expand(len(v), H)) - log_normal
        torch.testing.assert_close(difference, difference[:1].expand(len(v)))


def test_log_z_of_a_large_model_is_refused() -> None:
    energy = GRBM(2, 21)
    with pytest.raises(UserError, match="got H=21, expected H <= 20; use AIS"):
        energy.at(energy.initial(Key(0, 0))).log_z()


@pytest.mark.parametrize("seed", range(3))
def test_ais(model, seed: int) -> None:
    energy, theta = model
    exact = exact_log_z(energy, theta).value
    estimate = ais(energy, theta, Key(seed, 0), chains=500, temperatures=200)
    assert 0 < estimate.standard_error < 0.1
    assert abs(estimate.value - exact) < 3 * estimate.standard_error
