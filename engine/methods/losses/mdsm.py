"""Multiscale denoising score matching (Li et al. 2019)."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

import torch

from eblvm.engine.errors import UserError
from eblvm.engine.methods.base import Info, Noise, Rows
from eblvm.engine.methods.estimates import Batch, Loss, ScoreEstimate
from eblvm.engine.options import option

if TYPE_CHECKING:
    from torch import Tensor

    from eblvm.engine.config import Config
    from eblvm.kernels.philox import Key


class Mdsm(Loss):
    """1/2 |s(v + sigma eps) / sigma + eps / sigma0^2|^2: BiSM Eq. 5, weighted by 1/sigma^2. Levels are spread over the
    global batch, not drawn: a sample's `level` in [0, 1] is its position in it. The lower level's loss is divided by
    sigma, as in the published runs."""

    kind = "mdsm"
    estimators = ("exact", "bism", "vages")
    perturbs = scales_gradients = True

    sigma_range: tuple[float, ...] = option((0.05, 0.5), "lowest and highest noise level of mdsm", above=0)
    sigma_spacing: str = option("geometric", "spacing of mdsm's noise levels", choices=("geometric", "linear"))
    sigma0: float = option(0.1, "target noise level of mdsm", above=0)

    @property
    def blur(self) -> float:
        return self.sigma0

    def check(self, config: Config) -> None:
        if len(self.sigma_range) != 2 or self.sigma_range[0] > self.sigma_range[1]:
            raise UserError(f"got sigma-range={self.sigma_range}, expected two numbers, 0 < lowest <= highest")

    def draw(self, key: Key, rows: Rows) -> Noise:
        """Return level [B], and third [B, 3]: weights whose mean over the global batch is that of a third of levels."""
        here = slice(rows.place["first"], rows.place["first"] + rows.samples)
        dtype, device = rows.place["dtype"], rows.place["device"]
        # On a GPU they are kept: a dozen launches per step cost more than their memory.
        level, weight = (kept_positions if device.type == "cuda" else positions)(rows.total, dtype, device)
        return {
            "level": level[here].expand(*rows.replicas, rows.samples),
            "third": weight[:, here].expand(*rows.replicas, 3, rows.samples).mT,
        }

    def perturb(self, v: Tensor, eps: Tensor, noise: Noise) -> Batch:
        sigma_B = self.levels(noise["level"])
        sigma = sigma_B.view(-1, *[1] * (v.dim() - 1))
        return Batch(v + sigma * eps, eps, sigma, 1 / sigma_B)

    def levels(self, level_B: Tensor) -> Tensor:
        """Return the noise level at a position in [0, 1]."""
        low, high = self.sigma_range
        return low * (high / low) ** level_B if self.sigma_spacing == "geometric" else low + (high - low) * level_B

    def __call__(self, estimate: ScoreEstimate, batch: Batch, noise: Noise) -> Tensor:
        residual = estimate.score() / batch.sigma + batch.eps / self.sigma0**2
        return 0.5 * residual.square().flatten(1).sum(1)

    def logged(self, loss_B: Tensor, noise: Noise) -> Info:
        """Return the mean loss over the lowest, middle and highest third of the noise levels."""
        names = ("loss_low_sigma", "loss_middle_sigma", "loss_high_sigma")
        return dict(zip(names, (noise["third"].mT * loss_B).mean(1), strict=True))


def positions(total: int, dtype: torch.dtype, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return level [total] and the weights [3, total] of a whole batch."""
    level = torch.arange(total, dtype=dtype, device=device) / max(1, total - 1)
    third = torch.arange(3, device=device)[:, None] == (3 * level).long().clamp(max=2)
    return level, (third * (total / third.sum(1, keepdim=True).clamp(min=1))).to(dtype)


kept_positions = lru_cache(maxsize=8)(positions)
