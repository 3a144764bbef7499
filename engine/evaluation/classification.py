"""Classifiers on posterior means, and on pixels."""

from eblvm.engine.evaluation import plots
from eblvm.engine.evaluation.eval_model import EvalModel
from eblvm.engine.evaluation.figures import Figures
from eblvm.engine.evaluation.metrics.probes import PROBES, tsne
from eblvm.engine.evaluation.section import JUDGED, of_first
from eblvm.engine.runs.saved import SavedRun

FITTED = 10_000  # training samples of the classifiers


def figures(run: SavedRun, evaluated: EvalModel, replica: int = 0) -> Figures:
    """Classifiers fitted on the training split, their accuracy on the test split: on posterior means and on pixels."""
    data = run.dataset
    assert data.train_labels is not None
    assert data.test_labels is not None
    train, labels = data.train[:FITTED], data.train_labels[:FITTED]
    means = [evaluated.of_all("posterior_mean", run, v) for v in (train, data.test)]
    if replica == 0:
        title = f"t-SNE of posterior means of test samples{of_first(run)}"
        plots.embedding(tsne(means[1][:JUDGED]), data.test_labels[:JUDGED], run.folder / "tsne.png", title)
    pixels = [data.floats(v) for v in (train, data.test)]
    accuracies: Figures = {}
    for probe, accuracy in PROBES.items():
        for name, (fitted, tested) in (("posterior", means), ("pixels", pixels)):
            accuracies[f"{probe}_{name}_accuracy"] = accuracy(fitted, labels, tested, data.test_labels)
    return accuracies
