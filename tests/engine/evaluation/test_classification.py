"""Classifiers are fitted on training features alone, and are scikit-learn's own."""

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.svm import LinearSVC

from eblvm.engine.evaluation.classification import accuracy, classifiers, tsne
from eblvm.kernels import philox
from eblvm.kernels.philox import Key


def test_svm_by_hand() -> None:
    """Two separable classes; of the four test points the last lies on the other side."""
    train, labels = torch.tensor([[-2.0], [-1.0], [1.0], [2.0]]), torch.tensor([0, 0, 1, 1])
    test, truth = torch.tensor([[-3.0], [-1.5], [1.5], [3.0]]), torch.tensor([0, 0, 1, 0])
    assert accuracy(classifiers()["svm"], train, labels, test, truth) == 0.75


def test_svm_equals_scikit_learn_and_never_sees_the_test_labels() -> None:
    x = philox.normal(Key(1, 0), 0, 300, (1, 2, 3))
    y = (x.flatten(1).sum(1) + philox.normal(Key(2, 0), 0, 300) > 0).long()
    fitted = LinearSVC(random_state=0).fit(x[:200].flatten(1).double().numpy(), y[:200].numpy())
    expected = float(np.mean(fitted.predict(x[200:].flatten(1).double().numpy()) == y[200:].numpy()))
    assert accuracy(classifiers()["svm"], x[:200], y[:200], x[200:], y[200:]) == expected
    assert accuracy(classifiers()["svm"], x[:200], y[:200], x[200:], 1 - y[200:]) == pytest.approx(1 - expected)


def test_knn_by_hand() -> None:
    """Of the five training points nearest to 2.1 three are of class 1, of those nearest to 0 four of class 0."""
    train = torch.tensor([[0.0], [0.1], [0.2], [0.3], [1.0], [2.0], [2.2], [2.4], [9.0], [9.1]])
    labels = torch.tensor([0, 0, 0, 0, 1, 1, 1, 1, 0, 0])
    test = torch.tensor([[2.1], [0.0], [9.0]])
    assert accuracy(classifiers()["knn"], train, labels, test, torch.tensor([1, 0, 1])) == 1.0
    assert accuracy(classifiers()["knn"], train, labels, test, torch.tensor([0, 0, 1])) == pytest.approx(2 / 3)


def test_logistic_regression_is_scikit_learns() -> None:
    x = philox.normal(Key(1, 0), 0, 300, (6,))
    y = (x.sum(1) + philox.normal(Key(2, 0), 0, 300) > 0).long()
    fitted = LogisticRegression().fit(x[:200].double().numpy(), y[:200].numpy())
    expected = float(np.mean(fitted.predict(x[200:].double().numpy()) == y[200:].numpy()))
    assert accuracy(classifiers()["logistic"], x[:200], y[:200], x[200:], y[200:]) == expected
    assert set(classifiers()) == {"svm", "knn", "logistic"}


def test_tsne_keeps_two_far_clusters_apart() -> None:
    x = philox.normal(Key(1, 0), 0, 60, (4,))
    x[30:] += 50
    plane = tsne(x)
    assert plane.shape == (60, 2)
    centres = plane[:30].mean(0), plane[30:].mean(0)
    spread = max(plane[:30].std(), plane[30:].std())
    assert np.linalg.norm(centres[0] - centres[1]) > 2 * spread
