"""Nearest training neighbours of samples: whether a model remembers its training data rather than its distribution."""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Neighbours:
    distance: Tensor  # [n, k], Euclidean, nearest first
    index: Tensor  # [n, k], into the training set


def neighbours(v: Tensor, train: Tensor, k: int, scale: float) -> Neighbours:
    """The k nearest of `train` [m, ...] to each of `v` [n, ...] by |v - t| / scale, a part of `train` at a time. 255 as
    the scale gives distances of bytes in units of [0, 1]."""
    x = v.flatten(1).double()
    distance, index = torch.empty(len(v), 0, dtype=torch.float64), torch.empty(len(v), 0, dtype=torch.long)
    for i, chunk in enumerate(train.split(2000)):
        # Not by |x|^2 + |y|^2 - 2xy: a sample that is in the training set has distance 0 and no rounding.
        d = torch.cdist(x, chunk.flatten(1).double(), compute_mode="donot_use_mm_for_euclid_dist").cpu()
        distance = torch.cat([distance, d], 1)
        index = torch.cat([index, (i * 2000 + torch.arange(len(chunk))).expand(len(v), -1)], 1)
        distance, order = distance.topk(min(k, distance.shape[1]), dim=1, largest=False)
        index = index.gather(1, order)
    return Neighbours(distance / scale, index)
