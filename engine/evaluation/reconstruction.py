"""Reconstructions through the posterior mean."""

import torch
from torch import Tensor

from eblvm.engine.evaluation import plots
from eblvm.engine.evaluation.eval_model import EvalModel
from eblvm.engine.evaluation.figures import Figures
from eblvm.engine.evaluation.image_sets import as_images, has_images
from eblvm.engine.evaluation.section import SHOWN, of_first
from eblvm.engine.runs.saved import SavedRun


def figures(run: SavedRun, judged: list[EvalModel]) -> list[Figures]:
    """Root mean square error of test samples' reconstructions, over all their entries, and that of the mean."""
    test = run.dataset.floats(run.dataset.test)
    of_mean = rmse(run.dataset.floats(run.dataset.train).mean(0), test)
    rows: list[Figures] = []
    for evaluated in judged:
        reconstructed = evaluated.of_all("reconstruct", run, run.dataset.test)
        if has_images(run) and not rows:
            shown = [as_images(v[:SHOWN], run.dataset.image_shape) for v in (test, reconstructed)]
            pairs = torch.stack(shown, 1).flatten(0, 1)
            title = f"pairs: a test image (left) and its reconstruction (right){of_first(run)}"
            plots.image_grid(pairs[:64], run.folder / "reconstruction.png", columns=16, title=title)
        rows.append({"reconstruction_rmse": rmse(reconstructed, test), "reconstruction_rmse_of_mean": of_mean})
    return rows


def rmse(given: Tensor, wanted: Tensor) -> float:
    return float((given.double() - wanted.double()).square().mean().sqrt())
