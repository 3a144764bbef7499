"""NCE and VNCE against their definitions."""

import math

import pytest
import torch
from torch.nn.functional import logsigmoid

from eblvm.engine.methods.base import Nets
from eblvm.engine.methods.nce import Nce, Vnce
from eblvm.engine.nets.grbm import GRBM, Contrast
from eblvm.engine.nets.posteriors import Bernoulli
from eblvm.engine.optim.adam import Adam
from eblvm.kernels import philox
from eblvm.kernels.philox import Key
from tests.engine.methods.started import Started, cast, drawn

B, D, H = 50, 3, 4
RATES = {"theta": torch.tensor(0.1), "phi": torch.tensor(0.01)}


@pytest.fixture
def v() -> torch.Tensor:
    return 2 * philox.normal(Key(0, 0), 0, B, (D,), dtype=torch.float64) + 1


def start(method: Nce | Vnce, v: torch.Tensor) -> Started:
    posterior = {"posterior": Bernoulli(D, H)} if method.learns_q else {}
    nets = Nets(Contrast.of(GRBM(D, H), "fitted", v), phi_optimizer=Adam(), **posterior)
    state = cast(method.init(nets, Key(1, 0), v, Adam()))
    return Started(method, nets, state, v, drawn(method, nets, Key(2, 0), v), RATES)


def test_contrast_is_the_datas_gaussian(v) -> None:
    noise = Contrast.of(GRBM(D, H), "fitted", v)
    expected = torch.distributions.Normal(v.mean(0), v.std(0)).log_prob(v).sum(-1)
    torch.testing.assert_close(noise.log_noise(v), expected)


def test_standard_contrast(v) -> None:
    noise = Contrast.of(GRBM(D, H), "standard", v)
    expected = torch.distributions.Normal(0.0, 1.0).log_prob(v).sum(-1)
    torch.testing.assert_close(noise.log_noise(v), expected)
    assert torch.equal(noise.noise(v), v)
    assert torch.equal(Contrast.of(GRBM(D, H), "fitted", v).std, v.std(0))


def test_nce_gradient(v) -> None:
    begun = start(Nce(), v)
    gradient, *_ = begun.method.gradient(begun.nets)(*begun.given)

    theta, noise = {k: p.clone().requires_grad_() for k, p in begun.state.theta.params.items()}, begun.noise
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
    vnce, nets, state, _, noise, _ = start(Vnce(K=0, latent_samples=3), v)
    theta = state.theta.params
    phi = state.phi._replace(params={"net.0.weight": theta["W"].T, "net.0.bias": theta["c"]})
    state = state._replace(phi=phi)
    with torch.no_grad():
        expected = Nce().validation(Nets(nets.energy), state, v, noise)
        torch.testing.assert_close(vnce.validation(nets, state, v, noise), expected)


def test_vnce_lower_steps_tighten_the_bound(v) -> None:
    vnce, nets, state, _, _, _ = start(Vnce(K=5, latent_samples=4), v)
    gradient = vnce.gradient(nets)

    def distance(s) -> float:
        exact = nets.energy.at(s.theta.params).model.posterior_logits(v)
        return float((nets.posterior.at(s.phi.params).params(v) - exact).square().mean().sqrt())

    before = distance(state)
    with torch.no_grad():
        for step in range(60):
            _, state, _ = gradient(state, v, drawn(vnce, nets, Key(3, step), v), RATES)
    assert math.isfinite(before)
    assert distance(state) < 0.5 * before
