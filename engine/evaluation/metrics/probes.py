"""Probes of posterior means as features: the accuracy of classifiers on them, and their picture by t-SNE."""

import warnings
from typing import Any

import numpy as np
from torch import Tensor


def svm_accuracy(train: Tensor, train_labels: Tensor, test: Tensor, test_labels: Tensor) -> float:
    """scikit-learn's default LinearSVC, fitted on training features [n, H]: its accuracy on test features."""
    from sklearn.svm import LinearSVC  # slow to import

    # The papers, too, stop at the default's 1,000 iterations.
    return _accuracy(LinearSVC(random_state=0), train, train_labels, test, test_labels)


def knn_accuracy(train: Tensor, train_labels: Tensor, test: Tensor, test_labels: Tensor) -> float:
    """The same of scikit-learn's default five nearest neighbours."""
    from sklearn.neighbors import KNeighborsClassifier

    return _accuracy(KNeighborsClassifier(), train, train_labels, test, test_labels)


def logistic_accuracy(train: Tensor, train_labels: Tensor, test: Tensor, test_labels: Tensor) -> float:
    """The same of scikit-learn's default logistic regression, 100 iterations at most."""
    from sklearn.linear_model import LogisticRegression

    return _accuracy(LogisticRegression(), train, train_labels, test, test_labels)


PROBES = {"svm": svm_accuracy, "knn": knn_accuracy, "logistic": logistic_accuracy}


def _accuracy(classifier: Any, train: Tensor, train_labels: Tensor, test: Tensor, test_labels: Tensor) -> float:
    from sklearn.exceptions import ConvergenceWarning

    x_train, x_test = (v.flatten(1).cpu().double().numpy() for v in (train, test))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        fitted = classifier.fit(x_train, train_labels.cpu().numpy())
    return float(fitted.score(x_test, test_labels.cpu().numpy()))


def tsne(v: Tensor) -> np.ndarray:
    """Features [n, H] in the plane, [n, 2]."""
    from sklearn.manifold import TSNE

    x = v.flatten(1).cpu().double().numpy()
    return TSNE(random_state=0, perplexity=min(30, (len(x) - 1) / 3)).fit_transform(x)
