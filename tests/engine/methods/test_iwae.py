"""The importance-weighted lower loss: by its definition, at a posterior that is exact, and against the KL."""

import math

import pytest
import torch
from torch import Tensor

from eblvm.engine.methods.lower_level import Iwae, Kl
from eblvm.engine.nets.posteriors import Bernoulli, Gaussian
from eblvm.kernels import philox
from eblvm.kernels.philox import Key

B, H = 7, 3
LEFT_OUT = 0.5 * H * math.log(2 * math.pi)  # of a Gaussian's log density, by the engine
V = philox.normal(Key(0, 0), 0, B, (H,), dtype=torch.float64)


def head(h: Tensor) -> Tensor:
    """E(v, h) = |v - h|^2 / 2 + |h|^2 / 2: p(h|v) = N(v/2, 1/2), -log p~(v) = |v|^2/4 - H/2 log pi."""
    return 0.5 * (V - h).square().sum(-1) + 0.5 * h.square().sum(-1)


def gaussian(mean: Tensor, log_std: float) -> tuple[Gaussian, tuple[Tensor, Tensor]]:
    return Gaussian(torch.nn.Identity(), H), (mean, torch.full_like(mean, log_std))


def noise(k: int) -> Tensor:
    return philox.normal(Key(1, 0), 0, k * B, (H,), dtype=torch.float64).view(k, B, H)


@pytest.mark.parametrize("k", [1, 2, 9])
def test_the_definition(k: int) -> None:
    q, p = gaussian(0.3 * V, 0.2)
    got = Iwae()(head, q, p, noise(k))
    total = torch.zeros(B, dtype=torch.float64)
    for z in noise(k):
        h = p[0] + math.exp(0.2) * z
        log_q = torch.distributions.Normal(p[0], math.exp(0.2)).log_prob(h).sum(-1)
        total += (-head(h) - log_q).exp()
    torch.testing.assert_close(got, -(total / k).log() + LEFT_OUT, rtol=1e-12, atol=1e-12)


def test_one_sample_is_the_kl() -> None:
    q, p = gaussian(0.3 * V, 0.2)
    torch.testing.assert_close(Iwae()(head, q, p, noise(1)), Kl()(head, q, p, noise(1)))
    bernoulli = Bernoulli(H, H)
    logits, logistic = V, philox.logistic(Key(2, 0), 0, B, (H,), dtype=torch.float64)[None]
    torch.testing.assert_close(Iwae()(head, bernoulli, logits, logistic), Kl()(head, bernoulli, logits, logistic))


@pytest.mark.parametrize("k", [1, 5])
def test_an_exact_posterior_gives_the_marginal_for_any_draw(k: int) -> None:
    q, p = gaussian(0.5 * V, 0.5 * math.log(0.5))
    expected = 0.25 * V.square().sum(-1) - 0.5 * H * math.log(math.pi) + LEFT_OUT
    torch.testing.assert_close(Iwae()(head, q, p, noise(k)), expected, rtol=1e-12, atol=1e-12)


def test_more_samples_are_tighter() -> None:
    """Means over many draws fall with k towards -log p~(v)."""
    q, p = gaussian(0.1 * V, 0.4)
    values = []
    for k in (1, 4, 32):
        draws = [philox.normal(Key(3, i), 0, k * B, (H,), dtype=torch.float64).view(k, B, H) for i in range(400)]
        values.append(float(torch.stack([Iwae()(head, q, p, z).mean() for z in draws]).mean()))
    bound = float((0.25 * V.square().sum(-1) - 0.5 * H * math.log(math.pi)).mean()) + LEFT_OUT
    assert values[0] > values[1] > values[2] > bound
    assert values[2] - bound < 0.2 * (values[0] - bound)
