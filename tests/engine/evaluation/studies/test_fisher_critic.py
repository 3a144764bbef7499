"""The critic's estimate of the Fisher divergence against the true one, where both scores are known."""

import torch

from eblvm.engine.evaluation.studies.fisher_critic import Critic, fisher_divergence
from eblvm.engine.methods.base import Nets
from eblvm.engine.methods.lower_level import Kl
from eblvm.engine.methods.vages import Vages
from eblvm.engine.nets.grbm import GRBM
from eblvm.engine.nets.posteriors import Bernoulli
from eblvm.engine.optim.adam import Adam
from eblvm.kernels import philox
from eblvm.kernels.philox import Key


def test_the_critics_value_is_that_of_its_definition() -> None:
    critic = Critic(3, 5)
    eta = critic.initial(Key(0, 0))
    v, score = philox.normal(Key(1, 0), 0, 4, (3,)), philox.normal(Key(1, 0), 1, 4, (3,))
    eps = philox.rademacher(Key(1, 0), 2, 4, (3,))
    value = critic.at(eta).value(v, score, eps)
    for i in range(4):
        f = torch.func.functional_call(critic.net, {k.removeprefix("net."): p for k, p in eta.items()}, v[i])
        jacobian = torch.func.jacrev(
            lambda x: torch.func.functional_call(critic.net, {k.removeprefix("net."): p for k, p in eta.items()}, x)
        )(v[i])
        expected = score[i] @ f + eps[i] @ jacobian @ eps[i] - 0.5 * f @ f
        torch.testing.assert_close(value[i], expected, rtol=1e-4, atol=1e-5)


def test_it_tracks_the_true_divergence() -> None:
    """Data N(0, 1), a GRBM at a distance from it: near zero at zero distance, near the truth at another."""
    D, H = 4, 3
    data = philox.normal(Key(0, 0), 0, 6000, (D,))
    energy = GRBM(D, H)
    start = energy.initial(Key(1, 0))
    vages = Vages(K=2, L=1, divergence=Kl(), covariance="none")
    nets = Nets(energy, Bernoulli(D, H), phi_optimizer=Adam((0.9, 0.95)))
    phi = nets.posterior.initial(Key(2, 0))
    for size in (0.0, 1.0):
        theta = {k: size * p for k, p in start.items()}
        with torch.no_grad():
            true = 0.5 * (energy.at(theta).score(data) + data).square().sum(-1).mean()
        found = fisher_divergence(vages, nets, theta, phi, data[:4000], data[4000:], width=32, steps=600, lr=5e-3)
        assert abs(found.value - float(true)) < 0.15 * float(true) + 0.03, (size, found, float(true))
