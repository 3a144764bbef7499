"""The Bernoulli posterior: its density, its relaxed sample, its initial weights."""

import torch

from eblvm.engine.nets.posteriors import Bernoulli
from eblvm.kernels import philox
from eblvm.kernels.philox import Key


def test_log_prob_is_bernoullis_at_corners() -> None:
    posterior = Bernoulli(3, 2)
    logits = torch.tensor([[0.3, -1.2]])
    for h in ([0.0, 0.0], [0.0, 1.0], [1.0, 0.0], [1.0, 1.0]):
        expected = torch.distributions.Bernoulli(logits=logits).log_prob(torch.tensor([h])).sum(-1)
        torch.testing.assert_close(posterior.log_prob(logits, torch.tensor([h])), expected)


def test_a_cold_sample_is_a_bernoulli_draw() -> None:
    posterior = Bernoulli(3, 2, temperature=1e-3)
    logits = torch.tensor([[0.5, -1.0]])
    noise = philox.logistic(Key(0, 0), 0, 20_000, (2,))
    h = posterior.rsample(logits, noise)
    assert ((h < 0.01) | (h > 0.99)).float().mean() > 0.99
    torch.testing.assert_close(h.mean(0), posterior.mean(logits)[0], rtol=0, atol=0.02)


def test_start_is_uniform_by_fan_in_and_by_seed() -> None:
    posterior = Bernoulli(50, 20, hidden=(30,))
    phi = posterior.initial(Key(1, 0))
    assert {k: tuple(p.shape) for k, p in phi.items()} == {
        "net.0.weight": (30, 50),
        "net.0.bias": (30,),
        "net.2.weight": (20, 30),
        "net.2.bias": (20,),
    }
    bound = 1 / 50**0.5
    assert 0.9 * bound < phi["net.0.weight"].abs().max() <= bound
    assert not torch.equal(phi["net.0.weight"], posterior.initial(Key(2, 0))["net.0.weight"])
    assert posterior.at(phi).params(torch.zeros(4, 50)).shape == (4, 20)


def test_replica_axes_lead() -> None:
    posterior = Bernoulli(3, 2)
    together = posterior.initial(Key(torch.tensor([4, 5]), 0))
    for r, seed in enumerate((4, 5)):
        for name, p in posterior.initial(Key(seed, 0)).items():
            assert torch.equal(together[name][r], p)
