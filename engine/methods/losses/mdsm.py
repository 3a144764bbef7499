"""Multiscale denoising score matching (Li et al. 2019)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from eblvm.engine.methods.losses import Loss, half_square
from eblvm.engine.methods.types import Batch, DrawShape, Info, Noise, ScoreEstimate
from eblvm.engine.options import option

if TYPE_CHECKING:
    from torch import Tensor

    from eblvm.kernels.philox import Key


@dataclass(frozen=True)
class Mdsm(Loss):
    """1/2 |s(v + sigma eps) / sigma + eps / sigma0^2|^2: BiSM Eq. 5, weighted by 1/sigma^2.

    Levels are spread over the global batch, not drawn: a sample's `level` in [0, 1] is its position in it. The lower
    level's loss is divided by sigma, as in the published runs.
    """

    kind = "mdsm"
    estimators = ("exact", "bism", "vages")
    perturbs = scales_gradients = True
    batch_axes = {"level": 0, "third": 1}  # noqa: RUF012

    sigma_range: tuple[float, ...] = option((0.05, 0.5), "lowest and highest noise level of mdsm", above=0)
    sigma_spacing: str = option("geometric", "spacing of mdsm's noise levels", choices=("geometric", "linear"))
    sigma0: float = option(0.1, "target noise level of mdsm", above=0)

    @property
    def blur(self) -> float:
        return self.sigma0

    def draw(self, key: Key, shape: DrawShape) -> Noise:
        """level [B], and third [3, B]: weights whose mean over the global batch is that of a third of the levels."""
        import torch

        total = shape.total
        level = torch.arange(total, dtype=shape.dtype, device=shape.device) / max(1, total - 1)
        third = torch.arange(3, device=shape.device)[:, None] == (3 * level).long().clamp(max=2)
        weight = third * (total / third.sum(1, keepdim=True).clamp(min=1))
        here = slice(shape.first, shape.first + shape.samples)
        return {
            "level": level[here].expand(*shape.replicas, shape.samples),
            "third": weight[:, here].to(shape.dtype).expand(*shape.replicas, 3, shape.samples),
        }

    def perturb(self, v: Tensor, eps: Tensor | None, noise: Noise) -> Batch:
        assert eps is not None
        sigma_B = self.levels(noise["level"])
        sigma = sigma_B.view(-1, *[1] * (v.dim() - 1))
        return Batch(v + sigma * eps, eps, sigma, 1 / sigma_B)

    def levels(self, level_B: Tensor) -> Tensor:
        """The noise level at a position in [0, 1]."""
        low, high = self.sigma_range
        return low * (high / low) ** level_B if self.sigma_spacing == "geometric" else low + (high - low) * level_B

    def __call__(self, estimate: ScoreEstimate, batch: Batch, noise: Noise) -> Tensor:
        return half_square(estimate.score() / batch.sigma + batch.eps / self.sigma0**2)

    def logged(self, loss_B: Tensor, noise: Noise) -> Info:
        """The mean loss over the lowest, middle and highest third of the noise levels."""
        names = ("loss_low_sigma", "loss_middle_sigma", "loss_high_sigma")
        return dict(zip(names, (noise["third"] * loss_B).mean(1), strict=True))
