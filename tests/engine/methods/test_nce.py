"""NCE and VNCE against their definitions."""

import math

import pytest
import torch
from torch.nn.functional import logsigmoid

from eblvm.engine.methods.nce import GaussianNoise, NceObjective, VnceObjective
from eblvm.engine.nets.base import call
from eblvm.engine.nets.grbm import GRBM
from eblvm.engine.nets.posteriors import Bernoulli
from eblvm.engine.optim.adam import Adam
from eblvm.kernels import philox
from eblvm.kernels.philox import Key

B, D, H = 50, 3, 4
RATES = {"theta": torch.tensor(0.1), "phi": torch.tensor(0.01)}


@pytest.fixture
def v() -> torch.Tensor:
    return 2 * philox.normal(Key(0, 0), 0, B, (D,), dtype=torch.float64) + 1


def double(state):
    return torch.utils._pytree.tree_map(lambda t: t.double(), state)


def test_contrast_is_the_datas_gaussian(v) -> None:
    noise = GaussianNoise.fitted(v)
    expected = torch.distributions.Normal(v.mean(0), v.std(0)).log_prob(v).sum(-1)
    torch.testing.assert_close(noise.log_prob(v), expected)


def test_standard_contrast(v) -> None:
    noise = GaussianNoise.of("standard", v)
    expected = torch.distributions.Normal(0.0, 1.0).log_prob(v).sum(-1)
    torch.testing.assert_close(noise.log_prob(v), expected)
    assert torch.equal(noise.at(v), v)
    assert torch.equal(GaussianNoise.of("fitted", v).std, v.std(0))


def test_nce_gradient(v) -> None:
    objective = NceObjective(GRBM(D, H), Adam(), GaussianNoise.fitted(v))
    state = double(objective.init(Key(1, 0), v))
    noise = objective.draw(Key(2, 0), v)
    gradient, *_ = objective.gradient(state, v, noise, RATES)

    theta = {k: p.clone().requires_grad_() for k, p in state.theta.items()}
    y = v.mean(0) + v.std(0) * noise["contrast"]
    gaussian = torch.distributions.Normal(v.mean(0), v.std(0))

    def log_ratio(x):
        quadratic = 0.5 * ((x - theta["b"]) / theta["log_sigma"].exp()).square().sum(-1)
        free = quadratic - (1 + (theta["c"] + x @ theta["W"]).exp()).log().sum(-1)
        return -free - theta["log_z"] - gaussian.log_prob(x).sum(-1)

    loss = -logsigmoid(log_ratio(v)).mean() - logsigmoid(-log_ratio(y)).mean()
    for (name, g), expected in zip(gradient.items(), torch.autograd.grad(loss, list(theta.values())), strict=True):
        torch.testing.assert_close(g, expected, msg=name)


def test_vnce_with_the_exact_posterior_is_nce(v) -> None:
    """log p~(v,h) - log p(h|v) is the same for every h, so the bound is tight and the importance weights are equal."""
    contrast = GaussianNoise.fitted(v)
    vnce = VnceObjective(GRBM(D, H), Bernoulli(D, H), Adam(), Adam(), contrast, K=0, latent_samples=3)
    nce = NceObjective(GRBM(D, H), Adam(), contrast)
    state = double(vnce.init(Key(1, 0), v))
    state = state._replace(phi={"net.0.weight": state.theta["W"].T, "net.0.bias": state.theta["c"]})
    noise = vnce.draw(Key(2, 0), v)
    with torch.no_grad():
        torch.testing.assert_close(vnce.validation(state, v, noise), nce.validation(state, v, noise))


def test_vnce_lower_steps_tighten_the_bound(v) -> None:
    vnce = VnceObjective(GRBM(D, H), Bernoulli(D, H), Adam(), Adam(), GaussianNoise.fitted(v), K=5, latent_samples=4)
    state = double(vnce.init(Key(1, 0), v))

    def distance(s) -> float:
        exact = call(vnce.energy, {k: p for k, p in s.theta.items() if k != "log_z"}, "posterior_logits", v)
        return float((vnce.posterior.at(s.phi).params(v) - exact).square().mean().sqrt())

    before = distance(state)
    with torch.no_grad():
        for step in range(60):
            _, state, _ = vnce.gradient(state, v, vnce.draw(Key(3, step), v), RATES)
    assert math.isfinite(before)
    assert distance(state) < 0.5 * before
