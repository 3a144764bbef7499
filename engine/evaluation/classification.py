"""Classifiers on posterior means, and on pixels: their accuracy, and the posterior means as a picture by t-SNE."""

import warnings
from typing import Any

import numpy as np
from torch import Tensor

from eblvm.engine.evaluation import plots
from eblvm.engine.evaluation.eval_model import EvalModel
from eblvm.engine.evaluation.figures import Figures
from eblvm.engine.evaluation.section import JUDGED, of_first
from eblvm.engine.runs.saved import SavedRun

FITTED = 10_000  # training samples of the classifiers


def figures(run: SavedRun, judged: list[EvalModel]) -> list[Figures]:
    """Classifiers fitted on the training split, their accuracy on the test split: on posterior means and on pixels."""
    data = run.dataset
    assert data.train_labels is not None
    assert data.test_labels is not None
    train, labels = data.train[:FITTED], data.train_labels[:FITTED]
    pixels = [data.floats(v) for v in (train, data.test)]
    rows: list[Figures] = []
    for evaluated in judged:
        means = [evaluated.of_all("posterior_mean", run, v) for v in (train, data.test)]
        if not rows:
            title = f"t-SNE of posterior means of test samples{of_first(run)}"
            plots.embedding(tsne(means[1][:JUDGED]), data.test_labels[:JUDGED], run.folder / "tsne.png", title)
        row: Figures = {}
        for kind, classifier in classifiers().items():
            for name, (fitted, tested) in (("posterior", means), ("pixels", pixels)):
                row[f"{kind}_{name}_accuracy"] = accuracy(classifier, fitted, labels, tested, data.test_labels)
        rows.append(row)
    return rows


def classifiers() -> dict[str, Any]:
    """scikit-learn's defaults: the papers, too, stop at the 1,000 iterations of its linear SVM."""
    from sklearn.linear_model import LogisticRegression  # slow to import
    from sklearn.neighbors import KNeighborsClassifier
    from sklearn.svm import LinearSVC

    return {"svm": LinearSVC(random_state=0), "knn": KNeighborsClassifier(), "logistic": LogisticRegression()}


def accuracy(classifier: Any, train: Tensor, train_labels: Tensor, test: Tensor, test_labels: Tensor) -> float:
    """Fitted on training features [n, ...]: the fraction of test samples whose label it finds."""
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
