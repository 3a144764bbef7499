"""The lower step's gradient by hand against the one by autograd, in float64."""

import pytest
import torch

from eblvm.engine.methods import fused_fisher, lower_level
from eblvm.engine.methods.lower_level import LowerLevel
from eblvm.engine.methods.score_matching import ScoreMatching
from eblvm.engine.optim.base import Weights
from eblvm.engine.recipes import recipe
from tests.engine.methods.started import first_step


@pytest.mark.parametrize("samples", [1, 3])
@pytest.mark.parametrize("scale", [None, 4.0])
def test_real_steps(samples: int, scale: float | None, monkeypatch: pytest.MonkeyPatch) -> None:
    config = recipe("digits", "deep").replaced(width=4, posterior_width=4, latent=5, head_width=7, K=3, N=0, batch=6)
    config = config.replaced(latent_samples=samples, dtype="float64", lr=(1e-2,))
    method, nets, state, v, noise, rates = first_step(config, torch.rand(6, 1, 8, 8, dtype=torch.float64))
    assert isinstance(method, ScoreMatching)
    lower = method.estimator
    assert isinstance(lower, LowerLevel)
    batches, f = method.batches(v, noise), torch.randn(6, 5, dtype=torch.float64)
    if scale is not None:
        rates["scale"] = torch.tensor(scale, dtype=torch.float64)

    def steps() -> tuple[Weights, torch.Tensor]:
        moved, info = lower.real_steps(nets, state.theta.params, f, state.phi, batches, noise, rates)
        return moved, info["lower"]

    expected, loss = steps()
    calls = []
    plain = fused_fisher.gradient
    monkeypatch.setattr(lower_level, "written_out", lambda *_: True)
    monkeypatch.setattr(fused_fisher, "gradient", lambda *a: (calls.append(0), plain(*a))[1])
    found, loss_by_hand = steps()
    assert len(calls) == 3
    torch.testing.assert_close(found.params, expected.params, rtol=1e-11, atol=1e-13)
    torch.testing.assert_close(loss_by_hand, loss)
