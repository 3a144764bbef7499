"""Closed expectations of the deep head under a Gaussian q, against quadrature and torch's derivatives, in fp64."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from eblvm.engine.nets.gaussian_elu import elu_squared_moment, expected_curvature, expected_head, expected_slope

CASES = [(0.3, 0.7), (-2.0, 0.5), (3.0, 1.0), (-8.0, 0.2), (5.0, 0.1), (-1.0, 3.0), (-30.0, 6.0), (40.0, 5.0)]


def by_quadrature(k: int, mean: float, std: float) -> Tensor:
    x = torch.linspace(-12, 12, 200_001, dtype=torch.float64)
    a = mean + std * x
    below = a.clamp(max=0).exp()
    outside = {0: a.square(), 1: 2 * a, 2: torch.full_like(a, 2.0)}[k]
    inside = {0: (below - 1).square(), 1: 2 * below * (below - 1), 2: 4 * below.square() - 2 * below}[k]
    weight = torch.exp(-0.5 * x * x) * (x[1] - x[0]) / math.sqrt(2 * math.pi)
    return (weight * torch.where(a > 0, outside, inside)).sum()


@pytest.mark.parametrize(("mean", "std"), CASES)
@pytest.mark.parametrize("k", [0, 1, 2])
def test_moments_against_quadrature(k: int, mean: float, std: float) -> None:
    m, t = (torch.tensor(x, dtype=torch.float64) for x in (mean, std**2))
    torch.testing.assert_close(elu_squared_moment(k, m, t), by_quadrature(k, mean, std), rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("k", range(6))
def test_each_moment_is_the_slope_of_the_one_before(k: int) -> None:
    m, t, step = torch.linspace(-3, 3, 13, dtype=torch.float64), torch.tensor(0.4, dtype=torch.float64), 1e-4
    t = t.expand(13)
    slope = (elu_squared_moment(k, m + step, t) - elu_squared_moment(k, m - step, t)) / (2 * step)
    torch.testing.assert_close(slope, elu_squared_moment(k + 1, m, t), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("k", [0, 1, 2, 4, 6])
def test_derivatives(k: int) -> None:
    m = torch.linspace(-2, 2, 7, dtype=torch.float64, requires_grad=True)
    t = torch.linspace(0.1, 1.5, 7, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda *x: elu_squared_moment(k, *x), (m, t))
    assert torch.autograd.gradgradcheck(lambda *x: elu_squared_moment(k, *x), (m, t))


@pytest.mark.parametrize("mean", [-1e4, -60.0, 0.0, 60.0, 1e4])
@pytest.mark.parametrize("variance", [0.0, 1e-8, 1.0, 1e4])
def test_fp32_has_no_overflow(mean: float, variance: float) -> None:
    m, t = torch.tensor(mean, requires_grad=True), torch.tensor(variance, requires_grad=True)
    for k in range(4):
        value = elu_squared_moment(k, m, t)
        assert value.isfinite()
        assert all(g.isfinite() for g in torch.autograd.grad(value, (m, t)))


@pytest.mark.parametrize("block", ["mean", "full"])
def test_slope_and_curvature_of_the_expected_head(block: str) -> None:
    generator = torch.Generator().manual_seed(0)
    B, H, W = 5, 3, 11
    weight, bias, f, mean, log_std = (
        torch.randn(*shape, generator=generator, dtype=torch.float64) / 2
        for shape in ((W, 2 * H), (W,), (B, H), (B, H), (B, H))
    )
    found = (
        expected_slope(weight, bias, f, mean, log_std, block),
        expected_curvature(weight, bias, f, mean, log_std, block),
    )
    moved = slice(0, H if block == "mean" else 2 * H)
    for b in range(B):

        def head(eta: Tensor, b: int = b) -> Tensor:
            return expected_head(weight, bias, f[b : b + 1], eta[None, :H], eta[None, H:]).sum()

        eta = torch.cat([mean[b], log_std[b]])
        torch.testing.assert_close(found[0][b], torch.func.grad(head)(eta)[moved])
        torch.testing.assert_close(found[1][b], torch.func.jacrev(torch.func.grad(head))(eta)[moved, moved])


def test_expected_head_against_samples() -> None:
    generator = torch.Generator().manual_seed(1)
    weight, bias, f, mean = (
        torch.randn(*shape, generator=generator, dtype=torch.float64) for shape in ((7, 4), (7,), (3, 2), (3, 2))
    )
    log_std = torch.full_like(mean, -0.5)
    h = mean + log_std.exp() * torch.randn(200_000, 3, 2, generator=generator, dtype=torch.float64)
    joined = torch.cat([f + h, h], -1)
    sampled = F.elu(joined @ weight.T + bias).square().sum(-1)
    error = sampled.std(0) / len(h) ** 0.5
    assert ((expected_head(weight, bias, f, mean, log_std) - sampled.mean(0)).abs() < 4 * error).all()
