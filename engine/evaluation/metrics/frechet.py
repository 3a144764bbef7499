"""The Frechet distance between two sets of features (FID, Heusel et al. 2017), from sums that stream and merge.

d^2 = |mu_1 - mu_2|^2 + tr(S_1) + tr(S_2) - 2 tr((S_1 S_2)^(1/2))
"""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class FeatureMoments:
    """Sums over features x: how many, sum x [D], sum x x^T [D, D], in float64. Sums of disjoint sets add up."""

    count: int
    total: Tensor
    outer: Tensor

    @classmethod
    def of(cls, features: Tensor) -> "FeatureMoments":
        x = features.double()
        return cls(len(x), x.sum(0), x.T @ x)

    def __add__(self, other: "FeatureMoments") -> "FeatureMoments":
        return FeatureMoments(self.count + other.count, self.total + other.total, self.outer + other.outer)

    @property
    def mean(self) -> Tensor:
        return self.total / self.count

    @property
    def covariance(self) -> Tensor:
        """With the unbiased count - 1."""
        return (self.outer - self.count * torch.outer(self.mean, self.mean)) / (self.count - 1)


def frechet_distance(one: FeatureMoments, other: FeatureMoments) -> float:
    """d^2 between the Gaussians with these moments.

    The eigenvalues of S_1 S_2 are those of R S_2 R with R = S_1^(1/2), which is symmetric: their roots need no complex
    matrix square root, and a covariance without full rank (fewer samples than features) does no harm."""
    values, vectors = torch.linalg.eigh(one.covariance)
    root = vectors * values.clamp(min=0).sqrt() @ vectors.T
    inner = root @ other.covariance @ root
    roots = torch.linalg.eigvalsh((inner + inner.T) / 2).clamp(min=0).sqrt()
    traces = one.covariance.trace() + other.covariance.trace() - 2 * roots.sum()
    return float((one.mean - other.mean).square().sum() + traces)
