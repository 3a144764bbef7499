"""Finite-difference sliced score matching (Pang et al. 2020): sliced score matching without a second derivative."""

from __future__ import annotations

import torch

from eblvm.engine.methods.base import Noise, Rows
from eblvm.engine.methods.estimates import Batch, Loss, ScoreEstimate
from eblvm.engine.options import option
from eblvm.kernels import philox


class Fdssm(Loss):
    """With L = log p, u uniform on the sphere of radius sqrt(D) and a step e along it,

        [L(v + e u) + L(v - e u) - 2 L(v)] / e^2 + [L(v + e u) - L(v - e u)]^2 / (8 e^2),

    which is u^T grad_v s u + 1/2 (u.s)^2 to O(e^2): three values of the energy and one backward pass.
    """

    kind = "fdssm"
    estimators = ("exact", "bism")
    derivatives = 1

    difference_step: float = option(0.05, "e, the step of the finite differences, per axis", above=0)

    def draw(self, key: philox.Key, rows: Rows) -> Noise:
        """Return direction [B, ...], of length sqrt(D)."""
        purpose = philox.purpose(philox.Purpose.DIRECTION)
        u = philox.normal(key, purpose, rows.samples, rows.shape, **rows.place)
        axes = tuple(range(-len(rows.shape), 0))
        return {"direction": u / u.square().mean(axes, keepdim=True).sqrt()}

    def __call__(self, estimate: ScoreEstimate, batch: Batch, noise: Noise) -> torch.Tensor:
        assert estimate.log_density is not None
        e, step = self.difference_step, self.difference_step * noise["direction"]
        ahead, behind = estimate.log_density(batch.v + step), estimate.log_density(batch.v - step)
        here = estimate.log_density(batch.v)
        return (ahead + behind - 2 * here) / e**2 + (ahead - behind).square() / (8 * e**2)
