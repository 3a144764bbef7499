"""Exact score matching (Hyvarinen 2005)."""

from __future__ import annotations

import torch

from eblvm.engine import autodiff
from eblvm.engine.methods.base import Noise
from eblvm.engine.methods.estimates import Batch, Loss, ScoreEstimate


class Sm(Loss):
    """1/2 |s(v)|^2 + tr grad_v s(v), the trace by D second derivatives where the model has no closed form."""

    kind = "sm"
    estimators = ("exact",)
    derivatives = 3

    def __call__(self, estimate: ScoreEstimate, batch: Batch, noise: Noise) -> torch.Tensor:
        if estimate.laplacian is not None:
            return 0.5 * estimate.score().square().flatten(1).sum(1) + estimate.laplacian()
        assert estimate.log_density is not None
        dimension = batch.v[0].numel()
        basis = torch.eye(dimension, dtype=batch.v.dtype, device=batch.v.device).view(dimension, 1, *batch.v.shape[1:])
        score, curvature = autodiff.score_and_curvature(estimate.log_density, batch.v, basis.expand(-1, *batch.v.shape))
        return 0.5 * score.square().flatten(1).sum(1) + curvature.sum(0)
