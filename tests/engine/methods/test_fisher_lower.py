"""The lower step's gradient by hand against the one by autograd, in float64."""

import pytest
import torch
from torch import Tensor

from eblvm.engine.methods import fisher_lower
from eblvm.engine.methods.bilevel import BilevelScore
from eblvm.engine.methods.score_matching import ScoreMatchingObjective
from eblvm.engine.recipes import recipe
from eblvm.kernels.philox import Key


@pytest.mark.parametrize("samples", [1, 3])
@pytest.mark.parametrize("scale", [None, 4.0])
def test_real_steps(samples: int, scale: float | None, monkeypatch: pytest.MonkeyPatch) -> None:
    config = recipe("digits", "deep").replaced(width=4, posterior_width=4, latent=5, head_width=7, K=3, N=0)
    config = config.replaced(latent_samples=samples, dtype="float64")
    v = torch.rand(6, 1, 8, 8, dtype=torch.float64)
    objective = config.method.build(config.model, config.optimisation, v).objective
    assert isinstance(objective, ScoreMatchingObjective)
    estimator = objective.estimator
    assert isinstance(estimator, BilevelScore)
    state = objective.init(Key(0, 0), v)
    theta, phi = ({k: p.double() for k, p in tree.items()} for tree in (state.theta, state.phi))
    moments = estimator.optimizer.init(phi)
    noise = objective.draw(Key(0, 1), v)
    batches = objective.batches(v, noise)
    f = torch.randn(6, 5, dtype=torch.float64)
    rates = {"phi": torch.tensor(1e-2, dtype=torch.float64)}
    if scale is not None:
        rates["scale"] = torch.tensor(scale, dtype=torch.float64)

    def steps() -> tuple[dict[str, Tensor], Tensor]:
        moved, _, info = estimator.real_steps(theta, phi, moments, lambda *_: f, batches, noise["latent"], rates)
        return moved, info["lower"]

    expected, loss = steps()
    calls = []
    plain = fisher_lower.fisher_gradient
    monkeypatch.setattr(fisher_lower, "serves", lambda *_: True)
    monkeypatch.setattr(fisher_lower, "fisher_gradient", lambda *a: (calls.append(0), plain(*a))[1])
    found, loss_by_hand = steps()
    assert len(calls) == 3
    torch.testing.assert_close(found, expected, rtol=1e-11, atol=1e-13)
    torch.testing.assert_close(loss_by_hand, loss)
