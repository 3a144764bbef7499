"""The EBLVM of MLPs: its energy by hand, the contract of heads, its start, and what it learns in a few seconds."""

import pytest
import torch
import torch.nn.functional as F

from eblvm.engine.data.sets.checkerboard import Checkerboard
from eblvm.engine.errors import UserError
from eblvm.engine.evaluation.metrics.grid_likelihood import grid_log_likelihood
from eblvm.engine.methods.base import Nets
from eblvm.engine.methods.bism import Bism
from eblvm.engine.methods.losses.dsm import Dsm
from eblvm.engine.methods.lower_level import Kl
from eblvm.engine.methods.score_matching import ScoreMatching
from eblvm.engine.nets.mlp import MlpEnergy, MlpGaussian
from eblvm.engine.nets.posteriors import check_fit
from eblvm.engine.optim.adam import Adam
from eblvm.engine.recipes import recipe
from eblvm.engine.training.step import moved
from eblvm.kernels import philox
from eblvm.kernels.philox import Key
from tests.engine.methods.started import drawn

D, H = 2, 3


def theta_of(energy: MlpEnergy) -> dict[str, torch.Tensor]:
    theta = {k: p.double() for k, p in energy.initial(Key(4, 0)).items()}
    return theta | {"b": torch.tensor([0.3, -0.2]).double(), "log_sigma": torch.tensor([0.1, -0.5]).double()}


def test_energy_by_hand() -> None:
    energy = MlpEnergy(D, H, width=7, depth=2, head_width=5, mean=0.4, std=0.25)
    theta = theta_of(energy)
    v = philox.normal(Key(0, 0), 0, 6, (D,), dtype=torch.float64)
    h = philox.normal(Key(0, 1), 0, 6, (H,), dtype=torch.float64)
    x = (v - 0.4) / 0.25
    for layer in (0, 2, 4):
        x = x @ theta[f"feature_net.{layer}.weight"].T + theta[f"feature_net.{layer}.bias"]
        x = F.silu(x) if layer < 4 else x
    quadratic = 0.5 * ((v - theta["b"]) / theta["log_sigma"].exp()).square().sum(1) + 0.5 * h.square().sum(1)
    expected = quadratic + F.elu(x + h @ theta["coupling.weight"].T).square().sum(1)
    torch.testing.assert_close(energy.at(theta).energy(v, h), expected, rtol=1e-12, atol=1e-12)


def test_samples_of_h_share_the_features() -> None:
    energy, v, h = MlpEnergy(D, H, 8, 1, 4), torch.randn(5, D).double(), torch.randn(7, 5, H).double()
    theta = theta_of(energy)
    together = energy.at(theta).energy(v, h)
    assert together.shape == (7, 5)
    torch.testing.assert_close(together[2], energy.at(theta).energy(v, h[2]))


def test_energy_is_at_least_its_quadratic_terms() -> None:
    """So the density is normalisable: also with large weights, and in every direction."""
    energy = MlpEnergy(D, H)
    theta = {k: 5 * p for k, p in theta_of(energy).items()}
    v, h = 100 * torch.randn(1000, D).double(), 100 * torch.randn(1000, H).double()
    bound = 0.5 * ((v - theta["b"]) / theta["log_sigma"].exp()).square().sum(1) + 0.5 * h.square().sum(1)
    assert bool((energy.at(theta).energy(v, h) >= bound).all())


def test_posterior_fits_and_starts_replicate() -> None:
    energy, posterior = MlpEnergy(D, H), MlpGaussian(D, H)
    check_fit(energy, posterior, (D,))
    for model in (energy, posterior):
        several, single = model.initial(Key(torch.tensor([3, 9]), 0)), model.initial(Key(9, 0))
        assert list(several) == list(dict(model.named_parameters()))
        for name, p in single.items():
            assert torch.equal(several[name][1], p), name


def test_start_in_units_of_the_data() -> None:
    wide = MlpEnergy(D, H, mean=7.0, std=10.0)
    theta, plain = wide.initial(Key(0, 0)), MlpEnergy(D, H).initial(Key(0, 0))
    assert torch.equal(theta["b"], torch.full((D,), 7.0))
    torch.testing.assert_close(theta["log_sigma"].exp(), torch.full((D,), 20.0))
    v, h = torch.randn(5, D), torch.randn(5, H)
    scaled, unscaled = wide.at(theta).energy(7 + 10 * v, h), MlpEnergy(D, H).at(plain).energy(v, h)
    torch.testing.assert_close(scaled, unscaled, rtol=1e-4, atol=1e-4)
    q, p = MlpGaussian(D, H, mean=7.0, std=10.0), MlpGaussian(D, H)
    phi = q.initial(Key(0, 0))
    torch.testing.assert_close(q.at(phi).params(7 + 10 * v), p.at(phi).params(v), rtol=1e-4, atol=1e-5)


def test_bidsm_draws_the_checkerboard() -> None:
    """After 200 steps at noise 0.05 well above the 0.318 nats of a GRBM; the best possible at this noise is 0.507."""
    toy = Checkerboard()
    energy, posterior = (model(2, 2, mean=0.5, std=0.29) for model in (MlpEnergy, MlpGaussian))
    adam, batch, steps = Adam((0.9, 0.999)), 256, 200
    method = ScoreMatching(Bism(K=1, N=0, divergence=Kl()), Dsm(0.05))
    nets = Nets(energy, posterior, phi_optimizer=adam)
    step = moved(method.gradient(nets), nets, adam, in_place=True)
    state = method.init(nets, Key(0, 0), toy.points(batch), adam)
    for i in range(steps):
        rate = torch.tensor(5e-3 * (1 - i / steps))
        v = toy.points(batch, first=batch * i)
        noise = drawn(method, nets, Key(0, i), v)
        state, _ = step(state, v, noise, {"theta": rate, "phi": rate, "unroll": rate})
    test = toy.points(1000, first=10**6)
    figures = grid_log_likelihood(energy, state.theta.params, test, posterior, state.phi.params, size=50)
    assert 0.4 < figures.log_likelihood < 0.53, figures


def test_methods_without_q_are_refused() -> None:
    with pytest.raises(UserError, match=r"method 'dsm' needs a free energy in closed form, model 'mlp' has none; use"):
        recipe("checkerboard", "mlp", method="dsm").check()
