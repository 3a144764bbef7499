"""The importance-weighted bound on a linear-Gaussian model, whose marginal is known.

E(v, h) = 1/2 |h|^2 + 1/2 |v - a h|^2, one v and one h: log p~(v) = -v^2 / (2 (1 + a^2)) + 1/2 log(2 pi / (1 + a^2)).
"""

import math

import torch
from torch import Tensor, nn

from eblvm.engine.evaluation.metrics.importance import importance_weighted
from eblvm.engine.nets.base import Energy
from eblvm.engine.nets.posteriors import Gaussian
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
