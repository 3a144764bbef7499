"""The kernel distance between two sets of features (KID, Binkowski et al. 2018): an unbiased squared MMD."""

from typing import NamedTuple

import torch
from torch import Tensor

from eblvm.kernels import philox
from eblvm.kernels.philox import Key, Purpose, purpose

SUBSETS, SUBSET = 100, 1000  # as published


class KernelDistance(NamedTuple):
    mean: float
    deviation: float  # over the subsets
    subset: int


def squared_mmd(x: Tensor, y: Tensor) -> float:
    """The unbiased estimate for the kernel k(x, y) = (x.y / D + 1)^3, x [m, D] and y [n, D]:

    1/(m(m-1)) sum_{i != j} k(x_i, x_j) + 1/(n(n-1)) sum_{i != j} k(y_i, y_j) - 2/(mn) sum k(x_i, y_j)."""

    def kernel(a: Tensor, b: Tensor) -> Tensor:
        return (a @ b.T / a.shape[1] + 1) ** 3

    def within(a: Tensor) -> Tensor:
        k = kernel(a, a)
        return (k.sum() - k.trace()) / (len(a) * (len(a) - 1))

    return float(within(x) + within(y) - 2 * kernel(x, y).mean())


def kernel_distance(x: Tensor, y: Tensor, key: Key, subsets: int = SUBSETS, subset: int = SUBSET) -> KernelDistance:
    """Mean and deviation of `squared_mmd` over random subsets of both sets, of at most half of either: subsets that are
    the whole would not differ."""
    size = min(subset, len(x) // 2, len(y) // 2)

    def chosen(features: Tensor, substep: int, i: int) -> Tensor:
        order = philox.permutation(Key(key.seed, key.step + i), purpose(Purpose.EVAL, substep), len(features))
        return features[order[:size]].double()

    values = torch.tensor([squared_mmd(chosen(x, 1, i), chosen(y, 2, i)) for i in range(subsets)], dtype=torch.float64)
    return KernelDistance(float(values.mean()), float(values.std()) if subsets > 1 else 0.0, size)
