"""One pass of q for its sample and its score against two, in float64."""

import pytest
import torch
from torch import Tensor

from eblvm.engine.methods import bism
from eblvm.engine.nets.posteriors import ConvGaussian
from eblvm.engine.recipes import recipe
from tests.engine.methods.started import first_step


@pytest.mark.parametrize("scale", [None, 4.0])
def test_the_gradient_is_the_same(scale: float | None, monkeypatch: pytest.MonkeyPatch) -> None:
    config = recipe("digits", "deep").replaced(width=4, posterior_width=4, latent=5, head_width=7, K=1, N=0, batch=6)
    config = config.replaced(dtype="float64")
    passes = []
    plain = ConvGaussian.raw_outputs
    monkeypatch.setattr(ConvGaussian, "raw_outputs", lambda q, v: (passes.append(0), plain(q, v))[1])

    def step() -> tuple[dict[str, Tensor], int]:
        method, nets, state, v, noise, rates = first_step(config, torch.linspace(0, 1, 384).double().view(6, 1, 8, 8))
        if scale is not None:
            state = state._replace(scale={"value": torch.tensor(scale**2, dtype=torch.float64)})
        passes.clear()
        with torch.no_grad():
            bars, _, info = method.gradient(nets)(state, v, noise, rates)
        return bars | {"loss": info["loss"]}, len(passes)

    two, number = step()
    monkeypatch.setattr(bism, "passes_q_once", lambda v: True)
    one, fewer = step()
    assert number == fewer + 1
    torch.testing.assert_close(one, two, rtol=1e-12, atol=1e-14)
