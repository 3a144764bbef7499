"""Precision and recall of samples (Kynkaanniemi et al. 2019): how many look real, how much of the real they cover.

A set's manifold is the union of the balls around its features, each as wide as the distance to its k-th nearest one of
the same set. Precision is the fraction of samples within the manifold of the real images, recall that of real images
within the manifold of the samples.
"""

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

NEIGHBOURS = 3  # k, as published
ROWS = 1000  # of distances at once
SAME = 1e-12  # of the squared lengths: nearer features of fp32 count as the same


class PrecisionRecall(NamedTuple):
    precision: float
    recall: float


def precision_recall(samples: Tensor, real: Tensor, k: int = NEIGHBOURS) -> PrecisionRecall | None:
    """Of features [m, D] and [n, D], in float64; None where a set has no k-th neighbour."""
    if min(len(samples), len(real)) <= k:
        return None
    x, y = samples.double(), real.double()
    centre = y.mean(0)  # differences of short vectors lose fewer digits
    x, y = x - centre, y - centre
    return PrecisionRecall(_within(x, y, k), _within(y, x, k))


def _within(points: Tensor, others: Tensor, k: int) -> float:
    """The fraction of `points` in a ball of the manifold of `others`."""
    radii = torch.cat([rows.kthvalue(k + 1, 1).values for rows in _squared_distances(others, others)])  # 0 is itself
    inside = sum(int((rows <= radii).any(1).sum()) for rows in _squared_distances(points, others))
    return inside / len(points)


def _squared_distances(x: Tensor, y: Tensor) -> Iterator[Tensor]:
    """|x_i - y_j|^2 as chunks of rows [at most ROWS, n]."""
    lengths = y.square().sum(1)
    for chunk in x.split(ROWS):
        both = chunk.square().sum(1, keepdim=True) + lengths
        squared = both - 2 * chunk @ y.T
        yield squared.where(squared > SAME * both, 0.0)
