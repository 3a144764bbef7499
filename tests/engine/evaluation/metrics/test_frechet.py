"""The Frechet distance against its definition, torch-fidelity's arithmetic and the closed form of known Gaussians."""

import numpy as np
import pytest
import scipy.linalg
import torch
from torch import Tensor

from eblvm.engine.evaluation.metrics.frechet import FeatureMoments, frechet_distance
from eblvm.kernels import philox
from eblvm.kernels.philox import Key


def features(seed: int, count: int, width: int) -> Tensor:
    """Correlated and skewed, as Inception's are."""
    z = philox.normal(Key(seed, 0), 0, count, (width,))
    mix = philox.normal(Key(seed, 1), 0, width, (width,)) / width**0.5
    return torch.relu(z @ mix + 0.1 * seed)


def by_definition(x: Tensor, y: Tensor) -> float:
    """torch-fidelity's published arithmetic: numpy's mean and covariance of the features, and a matrix square root."""
    x64, y64 = x.double().numpy(), y.double().numpy()
    s_x, s_y = np.cov(x64, rowvar=False), np.cov(y64, rowvar=False)
    offset = x64.mean(0) - y64.mean(0)
    return float(offset @ offset + np.trace(s_x) + np.trace(s_y) - 2 * np.trace(scipy.linalg.sqrtm(s_x @ s_y)).real)


@pytest.mark.parametrize(("m", "n", "width"), [(500, 700, 2), (1000, 300, 63), (400, 500, 257)])
def test_equals_the_definition(m: int, n: int, width: int) -> None:
    x, y = features(1, m, width), features(2, n, width)
    assert frechet_distance(FeatureMoments.of(x), FeatureMoments.of(y)) == pytest.approx(by_definition(x, y), rel=1e-6)


def test_fewer_samples_than_features() -> None:
    """Covariances of rank 29 in 64 dimensions; the eigenvalues of their product, as torch-fidelity takes them."""
    x, y = features(1, 30, 64), features(2, 30, 64)
    s_x, s_y = (np.cov(v.double().numpy(), rowvar=False) for v in (x, y))
    roots = np.sqrt(np.linalg.eigvals(s_x @ s_y).astype(complex)).real.sum()
    offset = (x.double().mean(0) - y.double().mean(0)).square().sum()
    expected = float(offset) + np.trace(s_x) + np.trace(s_y) - 2 * roots
    assert frechet_distance(FeatureMoments.of(x), FeatureMoments.of(y)) == pytest.approx(expected, rel=1e-3)


def test_two_gaussians_in_closed_form() -> None:
    """Independent units of deviations a and b: |mu_a - mu_b|^2 + sum (a - b)^2."""
    mu, a, b = (torch.tensor(v, dtype=torch.float64) for v in ([1.0, -2.0, 0.5], [1.0, 2.0, 0.1], [3.0, 2.0, 0.4]))

    def moments(mean: Tensor, deviation: Tensor) -> FeatureMoments:
        n = 11
        outer = torch.diag(deviation.square()) * (n - 1) + n * torch.outer(mean, mean)
        return FeatureMoments(n, n * mean, outer)

    found = frechet_distance(moments(mu, a), moments(-mu, b))
    assert found == pytest.approx(float((2 * mu).square().sum() + (a - b).square().sum()), rel=1e-10)


def test_does_not_depend_on_batches_or_shards() -> None:
    x, y = features(1, 1001, 64), features(2, 500, 64)
    whole = frechet_distance(FeatureMoments.of(x), FeatureMoments.of(y))
    for size in (1, 100, 333):
        parts = [FeatureMoments.of(part) for part in x.split(size)]
        streamed = sum(parts[1:], parts[0])
        shards = [sum(shard[1:], shard[0]) for shard in (parts[0::3], parts[1::3], parts[2::3])]
        for found in (streamed, shards[2] + shards[0] + shards[1]):
            assert found.count == 1001
            assert frechet_distance(found, FeatureMoments.of(y)) == pytest.approx(whole, rel=1e-9)


def test_the_same_set_has_distance_zero() -> None:
    x = FeatureMoments.of(features(1, 400, 32))
    assert abs(frechet_distance(x, x)) < 1e-6
