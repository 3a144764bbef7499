"""The exact score of an energy whose free energy is known in closed form."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from eblvm.engine import autodiff
from eblvm.engine.methods import fused_grbm
from eblvm.engine.methods.base import Gradient, Nets, Noise, Rates
from eblvm.engine.methods.estimates import Batch, Estimator, Features, Loss, ScoreEstimate
from eblvm.engine.types import Params


class FreeEnergy(Estimator):
    """log p(v) = -F(v) + const, by closed forms of its derivatives where the energy has them."""

    kind = "exact"
    plans = True
    reads_features = False

    def estimate(
        self, nets: Nets, theta: Params, response: Any, features: Features, batch: Batch, noise: Noise, rates: Rates
    ) -> ScoreEstimate:
        energy, v = nets.energy.at(theta), batch.v

        def log_density(x: torch.Tensor) -> torch.Tensor:
            return -energy.free_energy(x)

        def score() -> torch.Tensor:
            F_B, pull = autodiff.vjp(energy.free_energy, v)
            if (scale := rates.get("scale")) is None:
                return pull(torch.full_like(F_B, -1.0))
            return pull((-scale).expand_as(F_B)) / scale

        def closed_form(name: str) -> Callable[..., Any] | None:
            return partial(getattr(energy, name), v) if hasattr(energy, name) else None

        laplacian, sliced = closed_form("laplacian"), closed_form("sliced")
        return ScoreEstimate(log_density, closed_form("score") or score, laplacian, sliced)

    def fused(self, nets: Nets, loss: Loss, device: torch.device, dtype: torch.dtype) -> Gradient | None:
        return fused_grbm.exact_gradient_for(loss, nets, device, dtype)
