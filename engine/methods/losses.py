"""Score matching losses, each a function of a score estimate at (perturbed) data.

A loss perturbs the data, then reduces a `Surrogate` of log p(v) to one value a sample. Everything is a mean over the
batch of sums over the visible axes; the factor 1/2 is kept in all of them, so that they estimate Fisher divergences.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from eblvm.engine.autodiff.derivatives import grad, vjp


class Batch(NamedTuple):
    """Data as a loss sees it: v (perturbed), the noise eps it was perturbed by, and sigma broadcastable to v."""

    v: Tensor
    eps: Tensor
    sigma: Tensor
    lower_weight: Tensor  # of each sample in the lower level's loss, [B] or []


class Surrogate(NamedTuple):
    """log p(v) up to a constant, as a function of v [B] with all else held fixed, and its score at the batch [B, D]."""

    log_density: Callable[[Tensor], Tensor] | None  # none: an estimate of the score only
    score: Callable[[], Tensor]
    # Closed forms, where a model has them: tr grad^2 log p(v) [B]; (1/2 |s|^2 [B], u^T grad^2 log p(v) u [M, B]) of u.
    laplacian: Callable[[], Tensor] | None = None
    sliced: Callable[[Tensor], tuple[Tensor, Tensor]] | None = None


def _square(x: Tensor) -> Tensor:
    return x.square().flatten(1).sum(1)


@dataclass(frozen=True)
class Dsm:
    """Denoising: 1/2 |s(v + sigma eps) + eps / sigma|^2 (Vincent 2011)."""

    sigma: float
    perturbs = True

    def perturb(self, v: Tensor, eps: Tensor) -> Batch:
        return Batch(v + self.sigma * eps, eps, torch.full_like(v[:1], self.sigma), torch.ones_like(v.flatten()[0]))

    def __call__(self, surrogate: Surrogate, batch: Batch, directions: Tensor | None) -> Tensor:
        return 0.5 * _square(surrogate.score() + batch.eps / self.sigma)


@dataclass(frozen=True)
class Mdsm:
    """Multiscale denoising: 1/2 |s(v + sigma eps) / sigma + eps / sigma0^2|^2: BiSM Eq. 5, weighted by 1/sigma^2.

    Levels are spread over the global batch, not drawn: a sample's `level` in [0, 1] is its place in it. The lower
    level's loss is divided by sigma, as in the published runs.
    """

    levels: tuple[float, float]
    spacing: str  # "geometric" or "linear"
    sigma0: float
    perturbs = True

    def perturb(self, v: Tensor, eps: Tensor, level_B: Tensor) -> Batch:
        low, high = self.levels
        sigma_B = low * (high / low) ** level_B if self.spacing == "geometric" else low + (high - low) * level_B
        sigma = sigma_B.view(-1, *[1] * (v.dim() - 1))
        return Batch(v + sigma * eps, eps, sigma, 1 / sigma_B)

    def __call__(self, surrogate: Surrogate, batch: Batch, directions: Tensor | None) -> Tensor:
        return 0.5 * _square(surrogate.score() / batch.sigma + batch.eps / self.sigma0**2)


def unperturbed(v: Tensor) -> Batch:
    """Data as they are."""
    return Batch(v, torch.zeros_like(v), torch.ones_like(v[:1]), torch.ones_like(v.flatten()[0]))


@dataclass(frozen=True)
class Sm:
    """Exact score matching: 1/2 |s(v)|^2 + tr grad_v s(v) (Hyvarinen 2005), the trace by D second derivatives."""

    perturbs = False

    def perturb(self, v: Tensor, eps: None = None) -> Batch:
        return unperturbed(v)

    def __call__(self, surrogate: Surrogate, batch: Batch, directions: Tensor | None) -> Tensor:
        if surrogate.laplacian is not None:
            return 0.5 * _square(surrogate.score()) + surrogate.laplacian()
        assert surrogate.log_density is not None
        dimension = batch.v[0].numel()
        basis = torch.eye(dimension, dtype=batch.v.dtype, device=batch.v.device).view(dimension, 1, *batch.v.shape[1:])
        score, curvature = score_and_curvature(surrogate.log_density, batch.v, basis.expand(-1, *batch.v.shape))
        return 0.5 * _square(score) + curvature.sum(0)


@dataclass(frozen=True)
class Ssm:
    """Sliced: 1/2 |s(v)|^2 + mean over directions of u^T grad_v s(v) u (Song et al. 2019)."""

    perturbs = False

    def perturb(self, v: Tensor, eps: None = None) -> Batch:
        return unperturbed(v)

    def __call__(self, surrogate: Surrogate, batch: Batch, directions: Tensor | None) -> Tensor:
        assert directions is not None
        if surrogate.sliced is not None:
            half_square, curvature = surrogate.sliced(directions)
        else:
            assert surrogate.log_density is not None
            score, curvature = score_and_curvature(surrogate.log_density, batch.v, directions)
            half_square = 0.5 * _square(score)
        return half_square + curvature.mean(0)


def score_and_curvature(
    log_density: Callable[[Tensor], Tensor], v: Tensor, directions: Tensor
) -> tuple[Tensor, Tensor]:
    """s = grad_v log p [B, ...] and u^T (grad_v^2 log p) u [M, B] for directions u [M, B, ...].

    All directions share one score and its graph; `vmap` sends them through its transposed Jacobian, which is the
    Hessian, at once. A single one goes by itself, without vmap's own cost.
    """
    score, hessian = vjp(lambda x: grad(lambda y: (log_density(y).sum(), ()), x)[0], v)
    along = hessian(directions[0])[None] if len(directions) == 1 else torch.vmap(hessian)(directions)
    return score, (along * directions).flatten(2).sum(2)


@dataclass(frozen=True)
class Ksd:
    """Kernelised Stein discrepancy (Liu et al. 2016): E_{v, v'} of

        k s(v).s(v') + s(v).grad_v' k + s(v').grad_v k + tr grad_v grad_v' k,    k(v, v') = exp(-|v - v'|^2 / (2 w^2)),

    over all pairs of a sample from the batch's first half and one from its second: within a pair the two score
    estimates are independent, so that an unbiased estimate of the score gives an unbiased one of the discrepancy.
    """

    width: float
    perturbs = False

    def perturb(self, v: Tensor, eps: None = None) -> Batch:
        return unperturbed(v)

    def __call__(self, surrogate: Surrogate, batch: Batch, directions: Tensor | None) -> Tensor:
        (x, y), (s_x, s_y) = self.halves(batch.v.flatten(1)), self.halves(surrogate.score().flatten(1))
        k, distance = self.kernel(x, y)
        precision = self.width**-2
        # s(v).(v - v') and (v - v').s(v'), without the differences of all pairs.
        along = (s_x * x).sum(1)[:, None] - s_x @ y.T - x @ s_y.T + (y * s_y).sum(1)
        pairs = k * (s_x @ s_y.T + precision * along + precision * x.shape[1] - precision**2 * distance)
        return torch.cat([pairs.mean(1), pairs.mean(0)])

    def halves(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """The first and the second half of [..., B, D]; the last of an odd number has no partner."""
        n = x.shape[-2] // 2
        return x[..., :n, :], x[..., n : 2 * n, :]

    def kernel(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """k and |v - v'|^2 of all pairs, [..., n, n]."""
        distance = x.square().sum(-1)[..., None] + y.square().sum(-1)[..., None, :] - 2 * x @ y.mT
        return torch.exp(-0.5 * self.width**-2 * distance), distance


ScoreLoss = Dsm | Mdsm | Sm | Ssm | Ksd
