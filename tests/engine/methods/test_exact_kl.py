"""`--divergence kl-exact` on the deep EBLVM: the KL without a sample of h, against a grid over h in fp64."""

import math

import pytest
import torch
from torch import Tensor, nn

import eblvm
from eblvm.engine.errors import UserError
from eblvm.engine.methods.lower_level import Head, KlExact
from eblvm.engine.nets.base import Separable
from eblvm.engine.nets.posteriors import Gaussian
from eblvm.engine.recipes import recipe
from eblvm.kernels.philox import Key
from tests.engine.methods.started import ADAM, cast

SMALL = {"width": 2, "latent": 2, "head_width": 6, "posterior_width": 2, "divergence": "kl-exact"}


def by_grid(head: Head, posterior: Gaussian, p: tuple[Tensor, Tensor]) -> Tensor:
    """E_q [log q + E] over 601 x 601 points of two latent units."""
    x = torch.linspace(-9, 9, 601, dtype=torch.float64)
    weight = torch.exp(-0.5 * x * x) * (x[1] - x[0]) / math.sqrt(2 * math.pi)
    noise = torch.cartesian_prod(x, x)[:, None]
    h = posterior.rsample(p, noise)
    return ((posterior.log_prob(p, h) + head(h)) * torch.outer(weight, weight).reshape(-1, 1)).sum(0)


def test_it_is_the_kl_and_so_is_its_gradient() -> None:
    config = recipe("digits", model="deep").replaced(**SMALL)
    data = config.load_data()
    v = data.floats(data.train[:3]).double()
    nets = config.method.nets(config, data.train)
    state = cast(config.method.init(nets, Key(3, 0), v, ADAM))
    theta, phi = state.theta.params, state.phi.params
    energy = nets.energy.at(theta)
    head = Head(energy, energy.features(v))

    def loss(divergence, phi: dict[str, Tensor]) -> Tensor:
        return divergence(head, nets.posterior, nets.posterior.at(phi).params(v)).mean()

    found, expected = (
        torch.func.grad_and_value(lambda phi, d=divergence: loss(d, phi))(phi)
        for divergence in (lambda *a: KlExact()(*a, noise=None), by_grid)
    )
    torch.testing.assert_close(found[1], expected[1], rtol=1e-9, atol=0)
    for name, gradient in found[0].items():
        torch.testing.assert_close(gradient, expected[0][name], rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("response", [{"best_response": "newton"}, {"N": 1}])
def test_it_trains_with_every_response(response: dict, tmp_path) -> None:
    run = eblvm.train("digits", model="deep", out=tmp_path, steps=3, batch=4, validations=0, K=1, **SMALL, **response)
    assert math.isfinite(run.history["lower"][-1])


def test_a_gaussian_q_needs_the_mean_of_the_energy() -> None:
    class Quadratic(nn.Module):
        def forward(self, f: Tensor, h: Tensor) -> Tensor:
            return (f + h).square().sum(-1)

    head = Head(Separable(nn.Identity(), Quadratic()), torch.zeros(3, 2))
    p = (torch.zeros(3, 2), torch.zeros(3, 2))
    with pytest.raises(UserError, match="needs the energy's mean over q, which Separable does not know"):
        KlExact()(head, Gaussian(nn.Linear(2, 4), 2), p, torch.zeros(1, 3, 2))
