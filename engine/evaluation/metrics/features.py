"""What posterior means are worth as features: a linear SVM's accuracy on them, and their picture by t-SNE."""

import warnings

import numpy as np
from torch import Tensor


def svm_accuracy(train: Tensor, train_labels: Tensor, test: Tensor, test_labels: Tensor) -> float:
    """scikit-learn's default LinearSVC, fitted on training features [n, H]: its accuracy on test features."""
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.svm import LinearSVC  # slow to import

    x_train, x_test = (v.flatten(1).cpu().double().numpy() for v in (train, test))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # the papers, too, stop at the default's 1,000 iterations
        fitted = LinearSVC(random_state=0).fit(x_train, train_labels.cpu().numpy())
    return float(fitted.score(x_test, test_labels.cpu().numpy()))


def tsne(v: Tensor) -> np.ndarray:
    """Features [n, H] in the plane, [n, 2]."""
    from sklearn.manifold import TSNE

    x = v.flatten(1).cpu().double().numpy()
    return TSNE(random_state=0, perplexity=min(30, (len(x) - 1) / 3)).fit_transform(x)
