"""Walks along the path of temperatures, tempered transitions, and mixing between starts, on GRBMs of known modes."""

import itertools
import math

import pytest
import torch
from torch import Tensor

from eblvm.engine.nets.grbm import GRBM
from eblvm.engine.sampling.annealing import Walk, annealed, resampled, tempered, walk
from eblvm.engine.sampling.mixing import mixing, several_starts
from eblvm.kernels import philox
from eblvm.kernels.philox import Key

D, H = 6, 4
CENTRE = 2.4  # of the two modes, at +-CENTRE in every axis


def two_modes(tilt: float) -> dict[str, Tensor]:
    """h is on in its first half, or in its second. Log odds of the first, `up`, are `tilt`; chains do not cross."""
    W = torch.full((D, H), CENTRE / 2, dtype=torch.float64)
    W[:, 2:] *= -1
    c = torch.zeros(H, dtype=torch.float64)
    c[:2] = tilt / 2
    zeros = torch.zeros(D, dtype=torch.float64)
    return {"W": W, "b": zeros, "c": c, "log_sigma": zeros}


def up(v: Tensor) -> Tensor:
    return v.mean(1) > 0


def around(centre: float, count: int) -> Tensor:
    return centre + philox.normal(Key(2, 0), 1, count, (D,), dtype=torch.float64)


def exact_samples(theta: dict[str, Tensor], count: int, seed: int = 5) -> Tensor:
    """h from its enumerated marginal, then v given h."""
    h = torch.tensor(list(itertools.product((0.0, 1.0), repeat=H)), dtype=torch.float64)
    log_p = h @ theta["c"] + 0.5 * (h @ theta["W"].T).square().sum(1)
    u = philox.uniform(Key(seed, 0), 1, count, dtype=torch.float64)
    chosen = h[torch.searchsorted(log_p.softmax(0).cumsum(0), u).clamp(max=len(h) - 1)]
    return chosen @ theta["W"].T + philox.normal(Key(seed, 1), 1, count, (D,), dtype=torch.float64)


def test_chains_in_a_light_mode_are_seen_though_they_agree() -> None:
    """Data at the light mode: chains from there agree with each other, and not with the annealed ones."""
    theta, key = two_modes(tilt=9.0), Key(1, 0)
    starts = several_starts(theta, around(-CENTRE, 50), annealed(theta, key, 200, 200), key, 40, 200)
    assert up(starts["annealing"]).double().mean() > 0.9
    alone = mixing(GRBM(D, H), theta, {"data": starts["data"], "other": starts["data"] + 0.1}, key, 200)
    assert alone.problem is None
    found = mixing(GRBM(D, H), theta, starts, key, 200)
    assert found.r_hat > 1.2
    assert "have not mixed" in found.problem
    assert "from data" in found.problem
    assert found.figures()["r_hat"] == found.r_hat


def test_starts_that_agree_are_mixed() -> None:
    theta, key = two_modes(tilt=9.0), Key(1, 0)
    starts = several_starts(theta, around(CENTRE, 50), annealed(theta, key, 200, 200), key, 40, 200)
    found = mixing(GRBM(D, H), theta, starts, key, 200)
    assert found.problem is None
    assert found.ess > 0.3 * found.draws
    assert "effective sample size" in found.sentence


def test_few_sweeps_and_broken_parameters_are_not_known() -> None:
    theta, v = two_modes(0.0), torch.zeros(4, D, dtype=torch.float64)
    few = mixing(GRBM(D, H), theta, {"a": v, "b": v}, Key(1, 0), 7)
    assert "too few to see" in few.problem
    assert few.figures()["ess"].startswith("not known: ")
    nan = torch.full((D,), math.nan, dtype=torch.float64)
    assert "not finite" in mixing(GRBM(D, H), theta | {"b": nan}, {"a": v, "b": v}, Key(1, 0), 20).problem


def test_a_tempered_transition_keeps_the_distribution() -> None:
    """Of 4,000 exact samples of two modes as many are in each before as after, within 4 errors."""
    theta = two_modes(1.0)
    v = exact_samples(theta, 4000)
    assert float(up(v).double().mean()) == pytest.approx(1 / (1 + math.exp(-1)), abs=0.03)
    moved = tempered(theta, Key(3, 0), v, 60)
    crossed = float((up(v) != up(moved)).double().sum())
    assert crossed > 100  # or the test would say nothing
    assert abs(float(up(moved).double().sum() - up(v).double().sum())) < 4 * crossed**0.5
    assert float(moved[up(moved)].mean()) == pytest.approx(CENTRE, abs=0.05)
    assert float(moved[~up(moved)].mean()) == pytest.approx(-CENTRE, abs=0.05)


def test_a_tempered_transition_leaves_a_light_mode() -> None:
    theta = two_modes(20.0)
    assert up(tempered(theta, Key(3, 0), around(-CENTRE, 200), 200)).double().mean() > 0.3
    assert up(tempered(theta, Key(3, 0), around(CENTRE, 200), 200)).all()


def test_resampling_follows_the_weights() -> None:
    found = Walk(
        torch.arange(4.0)[:, None], torch.tensor([-2000.0, 0.0, math.log(3.0), -math.inf], dtype=torch.float64)
    )
    counts = torch.bincount(resampled(found, Key(1, 0), 400)[:, 0].long(), minlength=4)
    assert counts.tolist() == [0, 100, 300, 0]


def test_a_walk_of_one_beta_per_chain_is_the_walk_of_each() -> None:
    theta, v = two_modes(0.0), torch.zeros(3, D, dtype=torch.float64)
    betas = torch.tensor([[0.2], [0.5], [0.9]], dtype=torch.float64)
    together = walk(theta, Key(1, 0), v, [1.0, betas, betas, 1.0])
    for i, beta in enumerate(betas[:, 0].tolist()):
        alone = walk(theta, Key(1, 0), v, [1.0, beta, beta, 1.0])
        torch.testing.assert_close(together.log_weight[i], alone.log_weight[i])
