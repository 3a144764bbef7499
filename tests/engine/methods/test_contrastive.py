"""CD and PCD: the gradient by its definition, and what the chain does."""

import torch

from eblvm.engine.methods.base import Nets
from eblvm.engine.methods.contrastive import Cd, Pcd
from eblvm.engine.nets.grbm import GRBM
from eblvm.kernels import philox
from eblvm.kernels.philox import Key
from tests.engine.methods.started import ADAM, drawn

B, D, H = 6, 3, 4
RATES = {"theta": torch.tensor(0.1)}


def start(method: Cd):
    nets, v = Nets(GRBM(D, H)), philox.normal(Key(0, 0), 0, B, (D,))
    return nets, v, method.init(nets, Key(1, 0), v, ADAM)


def by_definition(theta, v, chain):
    """E_data dF/dtheta - E_chain dF/dtheta of a GRBM, each parameter's derivative written out."""

    def mean(x):
        p, precision = torch.sigmoid(x @ theta["W"] + theta["c"]), torch.exp(-2 * theta["log_sigma"])
        difference = x - theta["b"]
        return {
            "W": -(x.T @ p) / len(x),
            "b": -(difference * precision).mean(0),
            "c": -p.mean(0),
            "log_sigma": -(difference**2 * precision).mean(0),
        }

    return {k: mean(v)[k] - mean(chain)[k] for k in theta}


def test_cd_gradient() -> None:
    method = Cd(sweeps=2)
    nets, v, state = start(method)
    noise, theta, chain = drawn(method, nets, Key(3, 7), v), state.theta.params, v
    for uniform_h, normal_v in noise["sweeps"]:
        p = torch.sigmoid(chain @ theta["W"] + theta["c"])
        h = (uniform_h < p).float()
        sigma = torch.exp(theta["log_sigma"])
        chain = theta["b"] + sigma**2 * (h @ theta["W"].T) + sigma * normal_v
    gradient, after, _ = method.gradient(nets)(state, v, noise, RATES)
    for name, expected in by_definition(theta, v, chain).items():
        torch.testing.assert_close(gradient[name], expected)
    assert after.chain == {}


def test_pcd_continues_its_chain() -> None:
    method = Pcd()
    nets, v, state = start(method)
    gradient_of = method.gradient(nets)
    assert torch.equal(state.chain["v"], v)
    first = drawn(method, nets, Key(3, 0), v)
    _, state, _ = gradient_of(state, v, first, RATES)
    chain = state.chain["v"]
    assert not torch.equal(chain, v)
    gradient, state, _ = gradient_of(state, v, drawn(method, nets, Key(3, 1), v), RATES)
    assert not torch.equal(state.chain["v"], chain)
    for name, expected in by_definition(state.theta.params, v, state.chain["v"]).items():
        torch.testing.assert_close(gradient[name], expected)


def test_cd_of_the_models_own_samples_has_no_drift() -> None:
    """Where the data come from the model itself, CD's expected gradient is zero."""
    energy = GRBM(2, 3)
    theta = energy.initial(Key(5, 0))
    from eblvm.engine.sampling.gibbs import gibbs

    start = philox.normal(Key(1, 0), 0, 20_000, (2,))
    v, _ = gibbs(theta, Key(2, 0), start, 200)
    method, nets = Cd(), Nets(energy)
    state = method.init(nets, Key(5, 0), v, ADAM)
    gradient, *_ = method.gradient(nets)(state, v, drawn(method, nets, Key(9, 0), v), RATES)
    for name, g in gradient.items():
        assert g.abs().max() < 0.05, name
    assert energy.at(theta).free_energy(v).isfinite().all()
