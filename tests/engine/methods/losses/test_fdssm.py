"""Finite-difference sliced score matching: its limit is sliced score matching, its gradient that of the definition."""

from pathlib import Path

import pytest
import torch

from eblvm.engine import recipes
from eblvm.engine.methods.base import Nets
from eblvm.engine.methods.exact import FreeEnergy
from eblvm.engine.methods.losses.fdssm import Fdssm
from eblvm.engine.methods.score_matching import ScoreMatching
from eblvm.engine.nets.grbm import GRBM
from eblvm.engine.runs.saved import SavedRun
from eblvm.engine.training.loop import train
from eblvm.kernels.philox import Key
from tests.engine.methods.started import ADAM, Started, cast, drawn, rates_of

D, H, B = 5, 4, 7


def start(loss: Fdssm) -> Started:
    method, nets = ScoreMatching(FreeEnergy(), loss), Nets(GRBM(D, H))
    v = torch.linspace(-1, 1, B * D, dtype=torch.float64).view(B, D)
    state = cast(method.init(nets, Key(0, 0), v, ADAM))
    return Started(method, nets, state, v, drawn(method, nets, Key(3, 0), v), rates_of(1e-3))


def test_directions_lie_on_the_sphere() -> None:
    u = start(Fdssm()).noise["direction"]
    torch.testing.assert_close(u.square().sum(1), torch.full((B,), float(D), dtype=torch.float64))


@pytest.mark.parametrize("step", [1e-2, 1e-3])
def test_it_is_the_sliced_loss_with_the_projected_score_to_second_order(step: float) -> None:
    """u^T H u and 1/2 (u.s)^2 by autograd; the difference falls with the square of the step."""
    method, nets, state, v, noise, rates = start(Fdssm(step))
    (batch,), theta, u = method.batches(v, noise), state.theta.params, noise["direction"]
    features = method.features(nets, theta, v, rates)
    estimate = method.estimator.estimate(nets, theta, {}, features, batch, noise, rates)

    def log_p(x: torch.Tensor) -> torch.Tensor:
        return -nets.energy.at(theta).free_energy(x[None])[0]

    score, hessian = torch.func.vmap(torch.func.grad(log_p))(v), torch.func.vmap(torch.func.hessian(log_p))(v)
    expected = torch.einsum("bi,bij,bj->b", u, hessian, u) + 0.5 * (u * score).sum(1).square()
    got = method.loss(estimate, batch, noise)
    torch.testing.assert_close(got, expected, rtol=0, atol=300 * step**2)


def test_gradient_is_that_of_the_definition() -> None:
    method, nets, state, v, noise, rates = start(Fdssm(0.1))
    gradient, *_ = method.gradient(nets)(state, v, noise, rates)

    def loss(theta: dict) -> torch.Tensor:
        log_p = lambda x: -nets.energy.at(theta).free_energy(x)  # noqa: E731
        up, down = log_p(v + 0.1 * noise["direction"]), log_p(v - 0.1 * noise["direction"])
        return ((up + down - 2 * log_p(v)) / 0.01 + (up - down).square() / 0.08).mean()

    for name, expected in torch.func.grad(loss)(state.theta.params).items():
        torch.testing.assert_close(gradient[name], expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("method", ["fdssm", "bifdssm"])
def test_it_trains_by_name(method: str, tmp_path: Path) -> None:
    config = recipes.recipe("checkerboard", method=method).replaced(steps=300, lr=(1e-2,), log_every=10, validations=3)
    assert train(config, tmp_path / "run")
    values = SavedRun.open(tmp_path / "run").payload["best"]["value"]
    assert torch.isfinite(torch.tensor(values)).all()
