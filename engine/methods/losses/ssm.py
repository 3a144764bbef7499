"""Sliced score matching (Song et al. 2019)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from eblvm.engine.methods.losses import Loss, half_square
from eblvm.engine.methods.types import Batch, DrawShape, Noise, ScoreEstimate
from eblvm.engine.options import option

if TYPE_CHECKING:
    from torch import Tensor

    from eblvm.kernels.philox import Key


@dataclass(frozen=True)
class Ssm(Loss):
    """1/2 |s(v)|^2 + mean over directions u of u^T grad_v s(v) u."""

    kind = "ssm"
    estimators = ("exact", "bism", "vages")
    derivatives = 3
    batch_axes = {"direction": 1}  # noqa: RUF012

    directions: int = option(1, "random directions per sample in sliced score matching", low=1)
    direction: str = option("rademacher", "distribution of those directions", choices=("rademacher", "gaussian"))

    def draw(self, key: Key, shape: DrawShape) -> Noise:
        """direction [M, B, ...]."""
        import torch

        from eblvm.kernels import philox

        drawn = philox.rademacher if self.direction == "rademacher" else philox.normal
        streams = [
            drawn(key, philox.purpose(philox.Purpose.DIRECTION, i), shape.samples, shape.shape, **shape.options)
            for i in range(self.directions)
        ]
        return {"direction": torch.stack(streams, len(shape.replicas))}

    def __call__(self, estimate: ScoreEstimate, batch: Batch, noise: Noise) -> Tensor:
        from eblvm.engine.autodiff.curvature import score_and_curvature

        if estimate.sliced is not None:
            half, curvature = estimate.sliced(noise["direction"])
            return half + curvature.mean(0)
        assert estimate.log_density is not None
        score, curvature = score_and_curvature(estimate.log_density, batch.v, noise["direction"])
        return half_square(score) + curvature.mean(0)
