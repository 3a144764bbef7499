"""HMC and MALA: Gaussians whose moments and acceptance are known, exactness where Langevin dynamics is biased."""

import math

import pytest
import torch
from torch import Tensor

from eblvm.engine.sampling.hmc import hmc, value_and_slope
from eblvm.engine.sampling.langevin import langevin
from eblvm.kernels import philox
from eblvm.kernels.philox import Key, Purpose, purpose

PRECISION = torch.tensor([[2.0, 0.8], [0.8, 1.0]], dtype=torch.float64)
MEAN = torch.tensor([0.5, -1.0], dtype=torch.float64)


def gaussian(x: tuple[Tensor, ...]) -> Tensor:
    """log density of (v, h) ~ N(MEAN, PRECISION^-1), v and h of one unit each."""
    y = torch.cat(x, 1) - MEAN
    return -0.5 * ((y @ PRECISION) * y).sum(1)


def start(count: int) -> tuple[Tensor, Tensor]:
    zeros = torch.zeros(count, 1, dtype=torch.float64)
    return zeros, zeros.clone()


@pytest.mark.parametrize(("leapfrog", "steps", "step_size"), [(8, 40, 0.4), (1, 300, 0.6)], ids=["hmc", "mala"])
def test_moments_of_a_gaussian_of_v_and_h(leapfrog: int, steps: int, step_size: float) -> None:
    """Mean and covariance within five standard errors of 20,000 independent chains' ends."""
    n = 20_000
    chains = hmc(gaussian, start(n), Key(1, 0), steps, step_size, leapfrog)
    x, covariance = torch.cat(chains.x, 1), torch.linalg.inv(PRECISION)
    spread = covariance.diag().sqrt()
    assert ((x.mean(0) - MEAN).abs() < 5 * spread / n**0.5).all()
    error = 5 * torch.outer(spread, spread) * (2 / n) ** 0.5
    assert ((x.T.cov() - covariance).abs() < error).all()
    assert 0.5 < float(chains.accepted.mean()) < 1
    assert chains.log_density.shape == (n, steps)
    torch.testing.assert_close(chains.log_density[:, -1], gaussian(chains.x))


def test_acceptance_of_one_proposal_is_metropolis_own() -> None:
    """From x = 0 of N(0, 1) one MALA proposal is e z, accepted with probability min(1, exp(-dH)) of its energies."""
    n, e = 4000, 1.4
    chains = hmc(lambda x: -0.5 * x[0].square().sum(1), (torch.zeros(n, 1, dtype=torch.float64),), Key(2, 5), 1, e, 1)
    z = philox.normal(Key(2, 5), purpose(Purpose.LANGEVIN, 0), n, (1,), dtype=torch.float64)[:, 0]
    x = e * z
    # log pi(x') q(x | x') / (pi(x) q(x' | x)) with q(x' | x) = N(x - e^2/2 x, e^2), at x = 0.
    backward = -((0 - (x - 0.5 * e**2 * x)) ** 2) / (2 * e**2)
    forward = -(x**2) / (2 * e**2)
    probability = (-0.5 * x**2 + backward - forward).exp().clamp(max=1)
    moved = chains.x[0][:, 0] != 0
    assert torch.equal(moved.double(), chains.accepted)
    torch.testing.assert_close(chains.x[0][:, 0][moved], x[moved])
    expected, error = float(probability.mean()), float((probability * (1 - probability)).mean() / n) ** 0.5
    assert float(chains.accepted.mean()) == pytest.approx(expected, abs=4 * error)
    assert 0.3 < expected < 0.9


def test_mala_has_no_bias_where_langevin_has() -> None:
    """Langevin dynamics of step e on N(0, 1) has variance 1 / (1 - e^2 / 4); with rejections it is 1."""
    n, e = 20_000, 1.0
    x = (torch.zeros(n, 1, dtype=torch.float64),)
    biased = langevin(lambda y: (-y[0],), x, Key(3, 0), [1.0] * 60, e)[0].var()
    exact = hmc(lambda y: -0.5 * y[0].square().sum(1), x, Key(3, 0), 60, e, 1).x[0].var()
    error = (2 / n) ** 0.5
    assert float(biased) == pytest.approx(1 / (1 - e**2 / 4), abs=5 * error / (1 - e**2 / 4))
    assert float(exact) == pytest.approx(1, abs=5 * error)


def test_a_chain_does_not_depend_on_its_neighbours_or_on_pauses() -> None:
    whole = hmc(gaussian, start(6), Key(4, 0), 7, 0.5, 3)
    part = hmc(gaussian, tuple(p[2:] for p in start(6)), Key(4, 0), 7, 0.5, 3, first=2)
    assert torch.equal(part.x[0], whole.x[0][2:])
    once = hmc(gaussian, start(6), Key(4, 0), 3, 0.5, 3)
    assert torch.equal(hmc(gaussian, once.x, Key(4, 3), 4, 0.5, 3).x[1], whole.x[1])


def test_leapfrog_is_second_order_and_reversible() -> None:
    """The energy error of a fixed time falls by four where the step is halved: acceptance goes to one."""
    rates = [float(hmc(gaussian, start(4000), Key(5, 0), 1, 1.2 / k, k).accepted.mean()) for k in (1, 4, 16)]
    assert rates[0] < rates[1] < rates[2]
    assert 1 - rates[2] < 0.35 * (1 - rates[1])


def test_a_proposal_without_a_density_is_refused() -> None:
    def bounded(x: tuple[Tensor, ...]) -> Tensor:
        return torch.where(x[0][:, 0].abs() < 1, 0.0, math.nan) - 0.5 * x[0].square().sum(1)

    chains = hmc(bounded, (torch.zeros(2000, 1, dtype=torch.float64),), Key(6, 0), 30, 0.8, 1)
    assert float(chains.x[0].abs().max()) < 1
    assert torch.isfinite(value_and_slope(bounded, chains.x)[0]).all()
