"""Sliced score matching (Song et al. 2019)."""

from __future__ import annotations

import torch

from eblvm.engine import autodiff
from eblvm.engine.methods.base import Noise, Rows
from eblvm.engine.methods.estimates import Batch, Loss, ScoreEstimate
from eblvm.engine.options import option
from eblvm.kernels import philox


class Ssm(Loss):
    """1/2 |s(v)|^2 + mean over directions u of u^T grad_v s(v) u."""

    kind = "ssm"
    estimators = ("exact", "bism", "vages")
    derivatives = 3

    directions: int = option(1, "random directions per sample in sliced score matching", low=1)
    direction: str = option("rademacher", "distribution of those directions", choices=("rademacher", "gaussian"))

    def draw(self, key: philox.Key, rows: Rows) -> Noise:
        """Return direction [B, M, ...]."""
        drawn = philox.rademacher if self.direction == "rademacher" else philox.normal
        purpose = philox.purpose(philox.Purpose.DIRECTION)
        streams = philox.streams(drawn, self.directions, key, purpose, rows.samples, rows.shape, **rows.place)
        axis = len(rows.replicas)
        return {"direction": torch.stack(streams, axis).movedim(axis, axis + 1)}

    def __call__(self, estimate: ScoreEstimate, batch: Batch, noise: Noise) -> torch.Tensor:
        direction_MB = noise["direction"].movedim(1, 0)
        if estimate.sliced is not None:
            half, curvature = estimate.sliced(direction_MB)
            return half + curvature.mean(0)
        assert estimate.log_density is not None
        score, curvature = autodiff.score_and_curvature(estimate.log_density, batch.v, direction_MB)
        return 0.5 * score.square().flatten(1).sum(1) + curvature.mean(0)
