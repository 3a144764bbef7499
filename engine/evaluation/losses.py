"""Losses of a deep model on the test set: the method's own, and the posterior's divergence."""

import torch

from eblvm.engine.evaluation.eval_model import EVAL_SEED
from eblvm.engine.methods.base import Rows
from eblvm.engine.runs.saved import SavedRun
from eblvm.kernels.philox import Key

TESTED = 2000  # test samples


@torch.no_grad()
def losses(run: SavedRun, model: str) -> dict[str, float]:
    """Return the upper loss and the lower level's divergence on the first TESTED test samples, a batch at a time."""
    method, nets, state = run.config.method, run.nets, run.state(model)
    totals: dict[str, float] = {}
    chunks = run.dataset.test[:TESTED].split(run.config.optimisation.batch)
    for i, chunk in enumerate(chunks):
        v, key = run.dataset.floats(chunk), Key(EVAL_SEED, i)
        values = method.diagnostics(nets, state, v, method.draw(nets, key, Rows.of(key, v)))
        for name, value in values.items():
            totals[f"test_{name}"] = totals.get(f"test_{name}", 0.0) + float(value) * len(v)
    return {name: total / min(TESTED, len(run.dataset.test)) for name, total in totals.items()}
