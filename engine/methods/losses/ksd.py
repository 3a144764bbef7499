"""Kernelised Stein discrepancy (Liu et al. 2016)."""

from __future__ import annotations

import torch

from eblvm.engine.autodiff import collectives
from eblvm.engine.methods.base import Noise
from eblvm.engine.methods.estimates import Batch, Loss, ScoreEstimate
from eblvm.engine.options import option


class Ksd(Loss):
    """E_{v, v'} of

        k s(v).s(v') + s(v).grad_v' k + s(v').grad_v k + tr grad_v grad_v' k,    k(v, v') = exp(-|v - v'|^2 / (2 w^2)),

    over all pairs of a sample from the batch's first half and one from its second: within a pair the two score
    estimates are independent, so that an unbiased estimate of the score gives an unbiased one of the discrepancy.
    """

    kind = "ksd"
    estimators = ("exact", "vages", "importance")
    pairs_samples = True
    micro_batches = False

    kernel_width: float = option(1.0, "width of KSD's kernel exp(-|v-v'|^2 / (2 width^2))", above=0)

    def __call__(self, estimate: ScoreEstimate, batch: Batch, noise: Noise) -> torch.Tensor:
        # Several processes: everyone has all pairs, with derivatives by its own scores.
        v, score = collectives.gather_rows(batch.v.flatten(1)), collectives.gather_rows(estimate.score().flatten(1))
        (x, y), (s_x, s_y) = self.halves(v), self.halves(score)
        k, distance = self.kernel(x, y)
        precision = self.kernel_width**-2
        # s(v).(v - v') and (v - v').s(v'), without the differences of all pairs.
        along = (s_x * x).sum(1)[:, None] - s_x @ y.T - x @ s_y.T + (y * s_y).sum(1)
        pairs = k * (s_x @ s_y.T + precision * along + precision * x.shape[1] - precision**2 * distance)
        terms = torch.cat([pairs.mean(1), pairs.mean(0)])
        if collectives.size() == 1:
            return terms
        # The mean over processes of means over samples has this process's terms as value, and as derivative that of
        # the whole: each pair is in two samples' terms, often of two processes.
        whole = collectives.size() * pairs.mean()
        return terms[collectives.local_slice(len(terms))].detach() + (whole - whole.detach())

    def halves(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the first and the second half of [..., B, D]; the last of an odd number has no partner."""
        n = x.shape[-2] // 2
        return x[..., :n, :], x[..., n : 2 * n, :]

    def kernel(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return k and |v - v'|^2 of all pairs, [..., n, n]."""
        distance = x.square().sum(-1)[..., None] + y.square().sum(-1)[..., None, :] - 2 * x @ y.mT
        return (-0.5 * self.kernel_width**-2 * distance).exp(), distance
