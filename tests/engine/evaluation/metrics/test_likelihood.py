"""AIS forth and back bracket the exact log Z of a GRBM whose h can be enumerated."""

import itertools

import pytest
import torch
from torch import Tensor

from eblvm.engine.evaluation.metrics.likelihood import ais, exact_log_z, reverse_ais
from eblvm.engine.nets.grbm import GRBM
from eblvm.kernels import philox
from eblvm.kernels.philox import Key

D, H, CHAINS = 3, 5, 4000


@pytest.fixture(scope="module")
def model() -> tuple[GRBM, dict[str, Tensor]]:
    """Strongly coupled, so that a short path is visibly biased."""
    energy = GRBM(D, H)
    theta = {k: p.double() for k, p in energy.initial(Key(1, 0)).items()}
    theta["W"] = 3 * theta["W"]
    theta["log_sigma"] = torch.tensor([0.2, -0.3, 0.1], dtype=torch.float64)
    return energy, theta


def exact_samples(theta: dict[str, Tensor], count: int) -> Tensor:
    """h from its enumerated marginal, then v given h, written out here with nothing of the engine."""
    h = torch.tensor(list(itertools.product((0.0, 1.0), repeat=H)), dtype=torch.float64)
    sigma = torch.exp(theta["log_sigma"])
    m = h @ theta["W"].T
    log_p = h @ theta["c"] + m @ theta["b"] + 0.5 * (m * sigma).square().sum(1)
    cumulated = log_p.softmax(0).cumsum(0)
    u = philox.uniform(Key(5, 0), 1, count, dtype=torch.float64)
    chosen = h[torch.searchsorted(cumulated, u).clamp(max=len(h) - 1)]
    noise = philox.normal(Key(6, 0), 1, count, (D,), dtype=torch.float64)
    return theta["b"] + sigma.square() * (chosen @ theta["W"].T) + sigma * noise


@pytest.mark.parametrize("temperatures", [1, 3, 10])
def test_the_means_of_single_chains_bracket_log_z(model, temperatures: int) -> None:
    """One chain's estimates average to less than log Z forth and to more than log Z back, by far more than the error.

    `ais` of many chains is nearly unbiased; the bound is that of one chain, so the mean over single chains shows it.
    """
    energy, theta = model
    exact = exact_log_z(energy, theta).value
    forth = [ais(energy, theta, Key(100 + i, 0), 2, temperatures).value for i in range(200)]
    v = exact_samples(theta, 400).view(200, 2, D)
    back = [reverse_ais(energy, theta, Key(500 + i, 0), v[i], temperatures).value for i in range(200)]
    (low, low_error), (high, high_error) = (
        (float(x.mean()), float(x.std()) / 200**0.5) for x in (torch.tensor(forth), torch.tensor(back))
    )
    assert low + 2 * low_error < exact < high - 2 * high_error


def test_both_converge_to_the_exact_value(model) -> None:
    energy, theta = model
    exact = exact_log_z(energy, theta).value
    forth = ais(energy, theta, Key(1, 0), CHAINS, 300)
    back = reverse_ais(energy, theta, Key(2, 0), exact_samples(theta, CHAINS), 300)
    for found in (forth, back):
        assert found.standard_error < 0.02
        assert abs(found.value - exact) < 4 * found.standard_error


def test_one_temperature_by_hand(model) -> None:
    """Back in one step: log Z = log Z_0 - log mean exp(sum softplus(0) - softplus(x)) over x = c + vW."""
    energy, theta = model
    v = exact_samples(theta, 50)
    x = v @ theta["W"] + theta["c"]
    start = H * torch.tensor(2.0, dtype=torch.float64).log() + theta["log_sigma"].sum()
    start = start + 0.5 * D * torch.tensor(2 * torch.pi, dtype=torch.float64).log()
    ratios = torch.exp((torch.log(torch.tensor(2.0, dtype=torch.float64)) - torch.log1p(x.exp())).sum(1))
    assert reverse_ais(energy, theta, Key(1, 0), v, 1).value == pytest.approx(float(start - ratios.mean().log()))
