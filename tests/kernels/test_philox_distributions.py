"""Distributions of the noise: moments, tails, quantiles, permutations."""

import math

import numpy as np
import pytest
import torch
from scipy import special, stats

from eblvm.kernels import philox
from eblvm.kernels.philox import Key, Purpose, reference
from eblvm.kernels.philox.reference import Kind

PURPOSE = philox.purpose(Purpose.PERTURB, 3)


@pytest.mark.parametrize(
    ("draw", "law", "variance"),
    [
        (philox.uniform, stats.uniform, 1 / 12),
        (philox.normal, stats.norm, 1.0),
        (philox.logistic, stats.logistic, math.pi**2 / 3),
        (philox.gumbel, stats.gumbel_r, math.pi**2 / 6),
    ],
    ids=["uniform", "normal", "logistic", "gumbel"],
)
def test_distribution(draw, law, variance):
    x = draw(Key(2024, 1), PURPOSE, 1000, (1000,), dtype=torch.float64).flatten().numpy()
    assert stats.kstest(x, law.cdf).pvalue > 1e-3
    assert abs(x.mean() - law.mean()) < 5 * math.sqrt(variance / x.size)
    fourth = law.stats(moments="k") + 3
    assert abs(x.var() - variance) < 5 * variance * math.sqrt((fourth - 1) / x.size)


def test_neighbours_are_uncorrelated():
    z = philox.normal(Key(8, 0), PURPOSE, 1000, (1000,), dtype=torch.float64)
    for a, b in ((z[1:], z[:-1]), (z[:, 1:], z[:, :-1]), (z[:, 2:], z[:, :-2])):
        assert abs((a * b).mean().item()) < 5e-3


def test_rademacher_is_fair():
    x = philox.rademacher(Key(5, 0), PURPOSE, 1000, (1000,))
    assert set(x.unique().tolist()) == {-1.0, 1.0}
    assert abs(x.mean().item()) < 5e-3


def test_normal_tail_beyond_five_sigma():
    beyond, total = 0, 0
    for step in range(16):
        z = philox.normal(Key(31, step), PURPOSE, 1000, (2000,))
        beyond += int((z.abs() > 5).sum())
        total += z.numel()
    expected = total * 2 * special.ndtr(-5.0)  # 18.3
    assert abs(beyond - expected) < 4 * math.sqrt(expected)


# Words at the boundaries: the centre, both ends, and the seam between the two polynomials.
EDGES = torch.cat(
    [
        torch.tensor([0, 1, 2, 3, 2**31 - 1, 2**31, 2**31 + 1, 2**32 - 1]),
        torch.logspace(0, 31, 20_001, base=2.0, dtype=torch.float64).long().clamp(max=2**31 - 1),
        torch.logspace(0, 31, 20_001, base=2.0, dtype=torch.float64).long().clamp(max=2**31 - 1) + 2**31,
    ]
)


def tail_probability(r: torch.Tensor) -> np.ndarray:
    return ((r & 0x7FFFFFFF).numpy() + 0.5) * 2.0**-31


def test_normal_is_the_quantile_of_its_word():
    z = reference.transform(EDGES, Kind.NORMAL).double().numpy()
    exact = np.where(EDGES.numpy() >> 31, 1, -1) * special.ndtri(tail_probability(EDGES) / 2)
    assert np.isfinite(z).all()
    assert np.abs(z - exact).max() < 2.5e-6
    assert (np.abs(z - exact) / np.abs(exact).clip(min=0.1)).max() < 1.2e-6
    assert np.abs(z).max() > 6.2


def test_logistic_is_the_quantile_of_its_word():
    x = reference.transform(EDGES, Kind.LOGISTIC).double().numpy()
    p = tail_probability(EDGES)
    exact = np.where(EDGES.numpy() >> 31, -1, 1) * np.log((2 - p) / p)
    assert np.abs(x - exact).max() < 3e-6


def test_gumbel_is_the_quantile_of_its_word():
    x = reference.transform(EDGES, Kind.GUMBEL).double().numpy()
    q = tail_probability(EDGES) / 2
    exact = -np.log(np.where(EDGES.numpy() >> 31, -np.log(q), -np.log1p(-q)))
    assert np.isfinite(x).all()
    assert np.abs(x - exact).max() < 3e-6
    assert x.max() > 22


def test_log_is_accurate_to_an_ulp():
    x = torch.logspace(-36, 36, 2_000_001, base=2.0, dtype=torch.float64).float()
    exact = np.log(x.double().numpy())
    got = reference.log(x).double().numpy()
    assert (np.abs(got - exact) / np.spacing(np.abs(exact).astype(np.float32)).clip(min=2.0**-60)).max() < 1.0


def test_bernoulli_is_uniform_below_p():
    key, p = Key(torch.tensor([1, 2]), 4), torch.linspace(0, 1, 2 * 50 * 6).reshape(2, 50, 6)
    drawn = philox.bernoulli(key, PURPOSE, p, first=7)
    assert torch.equal(drawn, (philox.uniform(key, PURPOSE, 50, (6,), first=7) < p).float())
    assert philox.bernoulli(key, PURPOSE, p.double(), first=7).dtype == torch.float64
    assert not philox.bernoulli(Key(1, 0), PURPOSE, torch.zeros(10_000)).any()
    assert philox.bernoulli(Key(1, 0), PURPOSE, torch.ones(10_000)).all()
    fraction = philox.bernoulli(Key(1, 0), PURPOSE, torch.full((100_000,), 0.3)).mean().item()
    assert abs(fraction - 0.3) < 5 * math.sqrt(0.21 / 100_000)


@pytest.mark.parametrize("n", [0, 1, 63, 100, 257])
def test_permutation_is_one(n):
    order = philox.permutation(Key(torch.tensor([1, 2]), 3), PURPOSE, n)
    assert order.dtype == torch.int64
    assert torch.equal(order.sort(dim=-1).values, torch.arange(n).expand(2, n))
    assert torch.equal(order[1], philox.permutation(Key(2, 3), PURPOSE, n))


def test_permutation_sorts_63_bit_keys():
    pairs = philox.words(Key(6, 3), PURPOSE, 1, (100, 2))[0].tolist()
    order = sorted(range(100), key=lambda i: (pairs[i][0], pairs[i][1] >> 1))
    assert philox.permutation(Key(6, 3), PURPOSE, 100).tolist() == order


def test_permutation_is_unbiased():
    order = philox.permutation(Key(torch.arange(12_000), 0), PURPOSE, 4)
    which = (order * torch.tensor([64, 16, 4, 1])).sum(dim=-1)
    counts = torch.unique(which, return_counts=True)[1]
    assert counts.numel() == 24
    assert stats.chisquare(counts.numpy()).pvalue > 1e-3
