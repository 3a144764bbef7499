"""Losses of a deep model on the test set: the method's own, and the posterior's divergence."""

import torch

from eblvm.engine.evaluation.eval_model import EVAL_SEED
from eblvm.engine.methods.score_matching import ScoreMatchingObjective
from eblvm.engine.methods.types import Objective, State
from eblvm.engine.runs.saved import SavedRun
from eblvm.kernels.philox import Key

TESTED = 2000  # test samples


@torch.no_grad()
def losses(run: SavedRun, model: str, objective: Objective) -> dict[str, float]:
    """The upper loss and the lower level's divergence on the first TESTED test samples, a batch at a time."""
    if not isinstance(objective, ScoreMatchingObjective):
        return {}
    theta = run.thetas(model)[0]
    state = State(theta, run.phi(model), (), (), {}, {})
    totals: dict[str, float] = {}
    chunks = run.dataset.test[:TESTED].split(run.config.optimisation.batch)
    for i, chunk in enumerate(chunks):
        v = run.dataset.floats(chunk)
        values = objective.diagnostics(state, v, objective.draw(Key(EVAL_SEED, i), v))
        for name, value in values.items():
            totals[f"test_{name}"] = totals.get(f"test_{name}", 0.0) + float(value) * len(v)
    return {name: total / min(TESTED, len(run.dataset.test)) for name, total in totals.items()}
