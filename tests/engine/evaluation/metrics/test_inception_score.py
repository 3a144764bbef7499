"""The Inception Score where it is known."""

import math

import pytest
import torch

from eblvm.engine.evaluation.metrics.inception_score import inception_score


def test_sure_and_even_predictions_score_the_number_of_classes() -> None:
    logits = 100 * torch.eye(4).repeat(25, 1)
    found = inception_score(logits, splits=5)
    assert found.mean == pytest.approx(4, rel=1e-9)
    assert found.deviation == pytest.approx(0, abs=1e-9)


def test_unsure_predictions_score_one() -> None:
    assert inception_score(torch.zeros(50, 4)).mean == pytest.approx(1)


def test_by_the_definition() -> None:
    p = torch.tensor([[0.7, 0.2, 0.1], [0.1, 0.8, 0.1]], dtype=torch.float64)
    marginal = [0.4, 0.5, 0.1]
    kl = [sum(float(q) * math.log(float(q) / m) for q, m in zip(row, marginal, strict=True)) for row in p]
    assert inception_score(p.log(), splits=1).mean == pytest.approx(math.exp(sum(kl) / 2), rel=1e-12)
