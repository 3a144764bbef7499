"""Langevin dynamics on energies whose distributions are known."""

import statistics
from itertools import pairwise

import pytest
import torch
from torch import Tensor, nn

from eblvm.engine.nets.base import Separable
from eblvm.engine.sampling.langevin import (
    conditional_score,
    denoised,
    joint_score,
    langevin,
    marginal_score,
    temperatures,
)
from eblvm.engine.sampling.starts import normal_start
from eblvm.kernels.philox import Key


class Coupled(nn.Module):
    """E = |v|^2 / (2 0.3^2) + |h - v|^2 / 2, for v and h of one size."""

    def forward(self, v: Tensor, h: Tensor) -> Tensor:
        return v.square().sum(-1) / (2 * 0.09) + 0.5 * (h - v).square().sum(-1)


class Normal(Separable):
    def free_energy(self, v: Tensor) -> Tensor:
        return v.square().sum(-1) / (2 * 0.09)


ENERGY = Normal(nn.Identity(), Coupled())


def test_the_published_schedule() -> None:
    t = temperatures()
    assert len(t) == 2700
    assert t[:501] == [100.0] * 501
    assert t[2499] == pytest.approx(1, rel=0.01)
    assert t[-1] == 0
    assert all(a >= b for a, b in pairwise(t))
    assert len(temperatures(270)) == 270


def test_marginal_chains_reach_the_normal() -> None:
    (v,) = langevin(marginal_score(ENERGY, {}), (torch.ones(4000, 1),), Key(1, 0), [1.0] * 300, step_size=0.1)
    assert float(v.mean()) == pytest.approx(0, abs=4 * 0.3 / 4000**0.5)
    # The discrete dynamics' own variance: sigma^2 / (1 - e^2 / (4 sigma^2)).
    assert float(v.var()) == pytest.approx(0.09 / (1 - 0.01 / (4 * 0.09)), rel=0.1)


def test_joint_chains_couple_v_and_h() -> None:
    start = (torch.zeros(4000, 1), torch.zeros(4000, 1))
    v, h = langevin(joint_score(ENERGY, {}), start, Key(2, 0), [1.0] * 1500, step_size=0.15)
    assert float(h.var()) == pytest.approx(1 + float(v.var()), rel=0.1)
    assert statistics.correlation(v[:, 0].tolist(), h[:, 0].tolist()) == pytest.approx(0.3 / 1.09**0.5, abs=0.08)


def test_conditional_chains_and_denoising_find_the_mode() -> None:
    h = torch.tensor([[-1.0], [2.0]])
    score = conditional_score(ENERGY, {}, h)
    x = langevin(score, (torch.zeros(2, 1),), Key(3, 0), [0.0] * 400, step_size=0.2)
    mode = h / (1 + 1 / 0.09)
    torch.testing.assert_close(x[0], mode, rtol=1e-3, atol=1e-3)
    far = (mode + 0.5,)
    torch.testing.assert_close(denoised(score, far, 0.1), far[0] - 0.01 * (1 + 1 / 0.09) * 0.5, rtol=1e-4, atol=1e-4)


def test_noise_is_a_function_of_seed_and_step() -> None:
    score = marginal_score(ENERGY, {})
    whole = langevin(score, (torch.ones(3, 2),), Key(4, 0), [1.0] * 6)
    part = langevin(score, (torch.ones(3, 2),), Key(4, 0), [1.0] * 2)
    assert torch.equal(langevin(score, part, Key(4, 2), [1.0] * 4)[0], whole[0])


def test_normal_start_is_around_grey() -> None:
    v = normal_start(Key(1, 0), 500, (1, 4, 4))
    assert abs(float(v.mean()) - 0.5) < 4 / v.numel() ** 0.5
    assert abs(float(v.std()) - 1) < 3 / v.numel() ** 0.5
    assert torch.equal(v[100:], normal_start(Key(1, 0), 400, (1, 4, 4), first=100))
