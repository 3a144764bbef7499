"""Figures of a deep model: its losses on the test set, the posterior's gap, and what its posterior means are worth."""

from typing import Any

import torch
from torch import Tensor

from eblvm.engine import replicas
from eblvm.engine.errors import UserError
from eblvm.engine.objectives import build
from eblvm.engine.objectives.estimators import Variational
from eblvm.engine.objectives.score_matching import ScoreMatching
from eblvm.engine.objectives.state import State
from eblvm.engine.run import Run
from eblvm.engine.sampling import infer
from eblvm.kernels.philox import Key

EVAL_SEED = 2**41  # evaluation noise is the same for every run
TESTED, FITTED = 2000, 10_000  # test samples of the losses, training samples of the classifiers


def rows(run: Run, model: str) -> list[dict[str, Any]]:
    """test_loss, test_divergence D(q||p), and the test accuracy of a linear SVM on posterior means and on pixels."""
    if run.config.replicated:
        raise UserError(f"{run.folder} holds replicas; deep models are evaluated one run at a time")
    objective = build(run.config, run.dataset).objective
    assert isinstance(objective, ScoreMatching)
    row: dict[str, Any] = {"replica": replicas.names(run.config)[0], **losses(run, model, objective)}
    if isinstance(objective.estimator, Variational) and run.dataset.train_labels is not None:
        row |= classification(run, model)
    return [row]


@torch.no_grad()
def losses(run: Run, model: str, objective: ScoreMatching) -> dict[str, float]:
    """The upper loss and the lower level's divergence on the first TESTED test samples, a batch at a time."""
    theta = run.thetas(model)[0]
    state = State(theta, run.phi(model), (), (), {}, {})
    totals: dict[str, float] = {}
    chunks = run.dataset.test[:TESTED].split(run.config.batch)
    for i, chunk in enumerate(chunks):
        v = run.dataset.floats(chunk)
        found = objective.diagnostics(state, v, objective.draw(Key(EVAL_SEED, i), v))
        for name, value in found.items():
            totals[f"test_{name}"] = totals.get(f"test_{name}", 0.0) + float(value) * len(v)
    return {name: total / min(TESTED, len(run.dataset.test)) for name, total in totals.items()}


def classification(run: Run, model: str) -> dict[str, float]:
    """A linear SVM (scikit-learn's defaults) fitted on the training split, its accuracy on the test split."""
    from sklearn.svm import LinearSVC  # slow to import

    data, means = run.dataset, infer(run, model)
    assert data.train_labels is not None
    assert data.test_labels is not None
    train, test = data.floats(data.train[:FITTED]), data.floats(data.test)
    y_train, y_test = data.train_labels[:FITTED].numpy(), data.test_labels.numpy()

    def accuracy(features: Any) -> float:
        x_train, x_test = (features(v).cpu().double().numpy() for v in (train, test))
        return float(LinearSVC(random_state=0).fit(x_train, y_train).score(x_test, y_test))

    def pixels(v: Tensor) -> Tensor:
        return v.flatten(1)

    return {"svm_posterior_accuracy": accuracy(means), "svm_pixels_accuracy": accuracy(pixels)}
