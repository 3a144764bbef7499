"""The unbiased MMD against a double loop over its definition, and KID's subsets."""

import pytest
import torch
from torch import Tensor

from eblvm.engine.evaluation.metrics.kernel_distance import kernel_distance, squared_mmd
from eblvm.kernels import philox
from eblvm.kernels.philox import Key


def features(seed: int, count: int, shift: float = 0.0) -> Tensor:
    return philox.normal(Key(seed, 0), 0, count, (5,), dtype=torch.float64) + shift


def test_squared_mmd_equals_the_double_loop() -> None:
    x, y = features(1, 7), features(2, 4, 0.5)

    def k(a: Tensor, b: Tensor) -> float:
        return float((a @ b / 5 + 1) ** 3)

    within = [
        sum(k(v[i], v[j]) for i in range(len(v)) for j in range(len(v)) if i != j) / (len(v) * (len(v) - 1))
        for v in (x, y)
    ]
    across = sum(k(a, b) for a in x for b in y) / (len(x) * len(y))
    assert squared_mmd(x, y) == pytest.approx(within[0] + within[1] - 2 * across, rel=1e-12)


def test_kernel_distance_is_unbiased_and_sees_a_shift() -> None:
    same = kernel_distance(features(1, 3000), features(2, 3000), Key(0, 0), subsets=50, subset=200)
    assert abs(same.mean) < 4 * same.deviation / 50**0.5
    assert same.subset == 200
    moved = kernel_distance(features(1, 3000), features(2, 3000, 1.0), Key(0, 0), subsets=20, subset=200)
    assert moved.mean > 5 * moved.deviation


def test_small_sets_give_smaller_subsets() -> None:
    found = kernel_distance(features(1, 30), features(2, 50), Key(0, 0), subsets=3)
    assert found.subset == 15
    assert found.deviation > 0
