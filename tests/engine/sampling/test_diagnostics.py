"""Effective sample size and R-hat on chains whose answers are known: AR(1), drifting, frozen, of different widths."""

import math

import pytest
import torch
from torch import Tensor

from eblvm.engine.sampling.diagnostics import effective_sample_size, r_hat
from eblvm.kernels import philox
from eblvm.kernels.philox import Key


def autoregressive(rho: float, chains: int, draws: int, seed: int = 1, statistics: int = 1) -> Tensor:
    """x_t = rho x_{t-1} + sqrt(1 - rho^2) z, from its own distribution N(0, 1): [chains, draws, statistics]."""
    z = philox.normal(Key(seed, 0), 1, chains * draws * statistics, dtype=torch.float64).view(draws, chains, statistics)
    x = [z[0]]
    for t in range(1, draws):
        x.append(rho * x[-1] + math.sqrt(1 - rho**2) * z[t])
    return torch.stack(x, 1)


@pytest.mark.parametrize("rho", [-0.5, 0.0, 0.5, 0.9])
def test_an_autoregressive_chain_has_its_known_size(rho: float) -> None:
    """(1 - rho) / (1 + rho) of the draws; the mean over 20 statistics within 8 %."""
    draws = autoregressive(rho, chains=4, draws=4000, statistics=20)
    expected = 4 * 4000 * (1 - rho) / (1 + rho)
    assert effective_sample_size(draws).mean() == pytest.approx(expected, rel=0.08)
    assert r_hat(draws).mean() < 1.01


def by_the_definition(draws: Tensor) -> float:
    """One statistic, in loops, with nothing of the engine."""
    half = draws.shape[1] // 2
    chains = [c[:half].tolist() for c in draws] + [c[-half:].tolist() for c in draws]
    M, N = len(chains), half
    means = [sum(c) / N for c in chains]
    lagged = [
        sum(sum((c[i] - m) * (c[i + t] - m) for i in range(N - t)) / N for c, m in zip(chains, means, strict=True)) / M
        for t in range(N)
    ]
    middle = sum(means) / M
    total = lagged[0] + sum((m - middle) ** 2 for m in means) / (M - 1)
    rho = [1.0] + [1 - (lagged[0] - lagged[t]) * N / (N - 1) / total for t in range(1, N)]
    time, smallest = -1.0, math.inf
    for k in range(N // 2):
        pair = rho[2 * k] + rho[2 * k + 1]
        if pair <= 0:
            break
        smallest = min(smallest, pair)
        time += 2 * smallest
    return M * N / max(time, 1 / math.log10(M * N))


@pytest.mark.parametrize(("rho", "draws"), [(0.8, 61), (0.3, 40), (-0.9, 25), (0.99, 30)])
def test_the_size_by_the_definition(rho: float, draws: int) -> None:
    x = autoregressive(rho, 3, draws)[..., 0]
    assert float(effective_sample_size(x)) == pytest.approx(by_the_definition(x), rel=1e-9)


def test_r_hat_by_hand() -> None:
    """Two chains of four draws: ranks 1 .. 8, halves {1, 2}, {5, 6}, {3, 4}, {7, 8}."""
    x = torch.tensor([[0.1, 0.2, 0.5, 0.6], [0.3, 0.4, 0.7, 90.0]])
    z = torch.special.ndtri((torch.arange(1, 9, dtype=torch.float64) - 0.375) / 8.25).view(4, 2)
    expected = (1 / 2 + z.mean(1).var() / z.var(1).mean()).sqrt()
    assert float(r_hat(x)) == pytest.approx(float(expected))


def test_chains_that_disagree_are_seen() -> None:
    x = autoregressive(0.5, 4, 1000)[..., 0]
    places, widths, drift = x.clone(), x.clone(), x.clone()
    places[0] += 2
    widths[0] *= 4
    drift += torch.linspace(-2, 2, 1000, dtype=torch.float64)  # every chain alike: only its halves disagree
    for broken in (places, widths, drift):
        assert float(r_hat(broken)) > 1.1
    assert float(effective_sample_size(places)) < 20


def test_frozen_chains_at_two_places_have_not_mixed() -> None:
    x = torch.zeros(4, 100)
    x[2:] = 5.0
    assert float(r_hat(x)) == math.inf
    assert float(effective_sample_size(x)) < 8


@pytest.mark.parametrize("value", [0.0, math.nan, math.inf])
def test_what_never_moved_or_is_not_finite_is_not_known(value: float) -> None:
    x = torch.full((2, 50, 2), value)
    x[..., 1] = autoregressive(0.0, 2, 50)[..., 0]
    for found in (effective_sample_size(x), r_hat(x)):
        assert found[0].isnan()
        assert found[1].isfinite()


def test_too_few_draws() -> None:
    with pytest.raises(ValueError, match=r"expected \[chains, 4 or more draws"):
        r_hat(torch.zeros(2, 3))
