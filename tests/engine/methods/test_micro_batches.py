"""Gradients from chunks of a batch against those of the whole, in fp64."""

import pytest
import torch

from eblvm.engine.config import Config
from eblvm.engine.methods.micro_batches import MicroBatched
from eblvm.engine.methods.score_matching import ScoreMatchingObjective
from eblvm.engine.optim.schedule import step_rates
from eblvm.engine.recipes import recipe
from eblvm.engine.training.start import initial_state
from eblvm.kernels import philox
from eblvm.kernels.philox import Key

B, TOLERANCE = 7, 1e-10
DEEP = recipe("digits", "deep").replaced(
    width=2, latent=3, head_width=5, posterior_width=2, batch=B, dtype="float64", K=2, lr=(1e-2,)
)
POINTS = recipe("checkerboard").replaced(batch=B, dtype="float64", N=2, K=2)
CASES = {
    "mdsm": DEEP.replaced(method="mdsm"),
    "bimdsm N=0": DEEP,
    "bimdsm N=2 adam": DEEP.replaced(N=2),
    "bimdsm N=2 sgd kl": DEEP.replaced(N=2, unroll_optimizer="sgd", unroll_lr=1e-3, divergence="kl", latent_samples=2),
    "bimdsm N=2 recompute checkpoint": DEEP.replaced(N=2, unroll_memory="recompute", checkpoint="all"),
    "grbm bidsm": POINTS.replaced(unroll_optimizer="sgd"),
    "grbm bissm": POINTS.replaced(method="bissm", directions=2),
    "vages-mdsm": DEEP.replaced(method="vages-mdsm", L=3, C=2),
    "grbm vages-ssm": POINTS.replaced(method="vages-ssm", directions=2),
    "grbm exact": POINTS.replaced(N=0, K=0, posterior="exact"),
    "grbm sm": POINTS.replaced(method="sm"),
}


@pytest.mark.parametrize("size", [1, 3, 7])
@pytest.mark.parametrize("name", CASES)
def test_gradient_is_that_of_the_whole_batch(name: str, size: int) -> None:
    config: Config = CASES[name]
    shape = (2,) if config.recipe == "checkerboard" else (1, 8, 8)
    v = philox.uniform(Key(7, 0), 0, B, shape, dtype=torch.float64)
    objective = config.method.build(config.model, config.optimisation, v).objective
    assert isinstance(objective, ScoreMatchingObjective)
    state = initial_state(config, objective, torch.tensor(0), v, torch.device("cpu"))
    rates = step_rates(config.optimisation, 0, v, config.method.lower_lr, config.method.unroll_lr)
    noise = objective.draw(Key(1, 2), v)
    chunks = MicroBatched(objective, size)
    with torch.no_grad():
        expected, expected_state, expected_info = objective.gradient(state, v, noise, rates)
        gradient, moved, info = chunks.gradient(state, v, noise, rates)
        torch.testing.assert_close(chunks.validation(state, v, noise), objective.validation(state, v, noise))
    for k, g in expected.items():
        assert (gradient[k] - g).abs().max() <= TOLERANCE * max(1.0, float(g.abs().max())), k
    for k, p in expected_state.phi.items():
        torch.testing.assert_close(moved.phi[k], p, rtol=0, atol=1e-10)
    assert info.keys() == expected_info.keys()
    for k, x in expected_info.items():
        torch.testing.assert_close(info[k], x)
