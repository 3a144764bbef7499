"""AUROC against scikit-learn's, with and without ties."""

import pytest
import torch
from sklearn.metrics import roc_auc_score

from eblvm.engine.evaluation.out_of_distribution import auroc
from eblvm.kernels import philox
from eblvm.kernels.philox import Key


@pytest.mark.parametrize(("m", "n", "digits"), [(1, 1, 3), (63, 257, 6), (1000, 400, 1), (500, 500, 0)])
def test_equals_scikit_learn(m: int, n: int, digits: int) -> None:
    inside = (philox.normal(Key(1, 0), 0, m) + 0.7).double().round(decimals=digits)
    outside = philox.normal(Key(2, 0), 0, n).double().round(decimals=digits)
    labels = [1] * m + [0] * n
    expected = roc_auc_score(labels, torch.cat([inside, outside]).numpy())
    assert auroc(inside, outside) == pytest.approx(expected, abs=1e-12)


def test_by_hand() -> None:
    """Of the pairs (3, 1), (3, 3), (2, 1), (2, 3): above, tied, above, below."""
    assert auroc(torch.tensor([3.0, 2.0]), torch.tensor([1.0, 3.0])) == 2.5 / 4
