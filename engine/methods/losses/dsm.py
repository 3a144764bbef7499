"""Denoising score matching (Vincent 2011)."""

from __future__ import annotations

import torch

from eblvm.engine.methods.base import Noise
from eblvm.engine.methods.estimates import Batch, Loss, ScoreEstimate
from eblvm.engine.options import option


class Dsm(Loss):
    """1/2 |s(v + sigma eps) + eps / sigma|^2."""

    kind = "dsm"
    estimators = ("exact", "bism", "vages")
    perturbs = scales_gradients = True

    sigma: float = option(0.05, "noise level of denoising score matching", above=0)

    @property
    def blur(self) -> float:
        return self.sigma

    def perturb(self, v: torch.Tensor, eps: torch.Tensor, noise: Noise) -> Batch:
        return Batch(v + self.sigma * eps, eps, v.new_full(v[:1].shape, self.sigma), v.new_ones(()))

    def __call__(self, estimate: ScoreEstimate, batch: Batch, noise: Noise) -> torch.Tensor:
        residual = estimate.score() + batch.eps / self.sigma
        return 0.5 * residual.square().flatten(1).sum(1)
