"""The importance-weighted bound on a linear-Gaussian model, whose marginal is known.

E(v, h) = 1/2 |h|^2 + 1/2 |v - a h|^2, one v and one h: log p~(v) = -v^2 / (2 (1 + a^2)) + 1/2 log(2 pi / (1 + a^2)).
"""

import math
from itertools import product

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from eblvm.engine.evaluation.metrics.importance_likelihood import importance_weighted, log_density
from eblvm.engine.nets.base import Energy
from eblvm.engine.nets.grbm import GRBM
from eblvm.engine.nets.posteriors import Bernoulli, Gaussian
from eblvm.kernels.philox import Key

A = 0.8
V = torch.linspace(-2, 2, 9, dtype=torch.float64)[:, None]
LOG_MARGINAL = -(V[:, 0] ** 2) / (2 * (1 + A * A)) + 0.5 * math.log(2 * math.pi / (1 + A * A))
CONSTANT = 0.5 * math.log(2 * math.pi)  # which `Gaussian.log_prob` leaves out


class Linear(Energy):
    def head(self, f: Tensor, h: Tensor) -> Tensor:
        return 0.5 * (h.square() + (f - A * h).square()).sum(-1)


class Encoder(nn.Module):
    """N(slope v, exp(2 log_std)); the exact posterior has slope a / (1 + a^2) and variance 1 / (1 + a^2)."""

    def __init__(self, slope: float, log_std: float):
        super().__init__()
        self.slope, self.log_std = slope, log_std

    def forward(self, v: Tensor) -> Tensor:
        return torch.cat([self.slope * v, torch.full_like(v, self.log_std)], -1)


EXACT = (A / (1 + A * A), -0.5 * math.log(1 + A * A))


def bound(slope: float, log_std: float, samples: int, v: Tensor = V, first: int = 0):
    posterior = Gaussian(Encoder(slope, log_std), 1)
    return importance_weighted(Linear(), {}, posterior, {}, v, Key(3, 0), samples, first)


def test_exact_with_the_exact_posterior() -> None:
    found = bound(*EXACT, samples=5)
    torch.testing.assert_close(found.value, LOG_MARGINAL - CONSTANT, rtol=0, atol=1e-10)
    assert found.standard_error.max() < 1e-10


def test_converges_within_its_error_and_from_below() -> None:
    wrong = (EXACT[0] * 0.7, EXACT[1] + 0.1)
    target = LOG_MARGINAL - CONSTANT
    many = bound(*wrong, samples=20_000)
    assert ((many.value - target).abs() < 4 * many.standard_error).all()
    assert many.standard_error.max() < 0.02
    repeated = V[:1].expand(4000, 1)
    for samples in (1, 10):
        found = bound(*wrong, samples, repeated).value
        error = float(found.std()) / 4000**0.5
        assert float(found.mean()) < float(target[0]) - 3 * error
    assert bound(*wrong, 10, repeated).value.mean() > bound(*wrong, 1, repeated).value.mean()


def test_does_not_depend_on_the_batch() -> None:
    whole = bound(0.1, 0.0, 20)
    later = bound(0.1, 0.0, 20, V[4:], first=4)
    torch.testing.assert_close(whole.value[4:], later.value, rtol=1e-12, atol=0)


class Grbm:
    """A GRBM of 3 visible and 4 latent units, with log p~(v) and its score by a sum over all h, in numpy alone."""

    def __init__(self) -> None:
        rng = np.random.default_rng(7)
        self.W, self.b, self.c = rng.normal(size=(3, 4)), rng.normal(size=3), rng.normal(size=4)
        self.log_sigma = rng.normal(size=3) / 4
        self.v = rng.normal(size=(5, 3))

    def theta(self) -> dict[str, Tensor]:
        return {name: torch.from_numpy(getattr(self, name)) for name in ("W", "b", "c", "log_sigma")}

    def marginal(self) -> tuple[np.ndarray, np.ndarray]:
        """(log p~(v) [B], grad_v log p~(v) [B, D])."""
        states = np.array(list(product((0.0, 1.0), repeat=4)))
        pull = (self.v - self.b) / np.exp(2 * self.log_sigma)
        quadratic = 0.5 * (pull * (self.v - self.b)).sum(1)
        joint = np.stack([np.exp(-quadratic + self.v @ self.W @ h + self.c @ h) for h in states])
        p_h = joint / joint.sum(0)
        return np.log(joint.sum(0)), -pull + np.einsum("sb,sh,dh->bd", p_h, states, self.W)


@pytest.mark.parametrize("temperature", [0.1, 1.0])
def test_of_binary_h_it_is_the_sum_over_all_h(temperature: float) -> None:
    """Drawn from q itself: relaxed samples, weighted by the discrete q, miss by 0.1."""
    model, rng = Grbm(), np.random.default_rng(8)
    value, score = model.marginal()
    energy, q = GRBM(3, 4), Bernoulli(3, 4, temperature=temperature)
    phi = {
        "net.0.weight": torch.from_numpy(model.W.T + 0.3 * rng.normal(size=(4, 3))),
        "net.0.bias": torch.from_numpy(model.c + 0.3 * rng.normal(size=4)),
    }
    v = torch.from_numpy(model.v).requires_grad_()
    bound = importance_weighted(energy, model.theta(), q, phi, v.detach(), Key(3, 0), 20_000)
    assert (np.abs(bound.value.numpy() - value) < 4 * bound.standard_error.numpy()).all()
    assert bound.standard_error.max() < 0.02
    (slope,) = torch.autograd.grad(log_density(energy, model.theta(), q, phi, v, Key(3, 0), 20_000).sum(), v)
    assert np.abs(slope.numpy() - score).max() < 0.05
