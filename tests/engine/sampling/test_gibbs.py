"""Gibbs sampling has the model's distribution: moments against enumeration."""

import torch

from eblvm.engine.nets.grbm import GRBM
from eblvm.engine.sampling.gibbs import gibbs, uniform_start
from eblvm.kernels import philox
from eblvm.kernels.philox import Key

D, H, COUNT = 2, 3, 40_000


def test_gibbs_moments_match_enumeration() -> None:
    energy = GRBM(D, H)
    theta = energy.initial(Key(4, 0))
    theta["W"] = 1.5 * theta["W"]
    states = torch.tensor([[float(k >> j & 1) for j in range(H)] for k in range(2**H)])
    means, sigma = energy.at(theta).conditional_v(states)
    field = states @ theta["W"].T
    log_weight = states @ theta["c"] + field @ theta["b"] + 0.5 * (field * sigma).square().sum(-1)
    weight = torch.softmax(log_weight, 0)
    mean = weight @ means
    variance = weight @ (means**2 + sigma**2) - mean**2

    start = uniform_start(Key(0, 0), COUNT, philox.normal(Key(1, 0), 0, 100, (D,)))
    v, _ = gibbs(theta, Key(0, 0), start, 100)
    error = (variance / COUNT).sqrt()
    assert ((v.mean(0) - mean).abs() < 4 * error).all()
    torch.testing.assert_close(v.var(0), variance, rtol=0.04, atol=0)


def test_uniform_start_fills_the_datas_range() -> None:
    data = torch.tensor([[0.0, -3.0], [1.0, 5.0]])
    v = uniform_start(Key(0, 0), 1000, data)
    assert (v >= data.amin(0)).all()
    assert (v <= data.amax(0)).all()
    torch.testing.assert_close(v.mean(0), data.mean(0), rtol=0, atol=0.3)
