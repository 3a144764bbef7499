"""Pictures of a run while it trains: samples, reconstructions, histograms of weights, in RUN/previews.

They read the state and draw from noise of their own: the run's numbers do not depend on them.
"""

import sys
from pathlib import Path

import torch

from eblvm.engine import sampling
from eblvm.engine.errors import UserError
from eblvm.engine.evaluation import plots
from eblvm.engine.evaluation.eval_model import eval_models
from eblvm.engine.evaluation.image_sets import as_images
from eblvm.engine.progress import quietly
from eblvm.engine.runs.saved import SavedRun

SHOWN = 36
STEPS = {"gibbs": 100, "langevin": 300}  # of the samplers that have steps
SEED = 2**39


def preview(run: SavedRun, thorough: bool) -> dict[str, Path]:
    """The pictures of the last model, by name. `thorough` also runs Langevin chains, whose steps cost like training."""
    step, pictures = run.payload["step"], {}
    folder = run.folder / "previews"
    try:
        with quietly(), torch.no_grad():
            pictures["weights"] = folder / f"weights-{step:08d}.png"
            theta = run.thetas("last")[0]
            plots.histograms(
                {k: p.flatten().cpu() for k, p in sorted(theta.items(), key=lambda kp: -kp[1].numel())[:4]},
                "value", pictures["weights"], f"weights at step {step}",
            )  # fmt: skip
            evaluated = eval_models(run, "last")[0]
            if evaluated.reconstruct is not None and (len(run.shape) == 3 or run.image_shape):
                v = run.dataset.floats(run.dataset.valid[: SHOWN // 2])
                pairs = torch.stack([as_images(x, run.image_shape) for x in (v, evaluated.reconstruct(v))], 1)
                pictures["reconstruction"] = folder / f"reconstruction-{step:08d}.png"
                title = f"step {step}, pairs: a validation image (left) and its reconstruction (right)"
                plots.image_grid(pairs.flatten(0, 1), pictures["reconstruction"], columns=12, title=title)
        with quietly():
            sampler = sampling.sampler_of(run)
            if sampler.quick or thorough:
                count = SHOWN if len(run.shape) == 3 or run.image_shape else 500
                v = sampling.sampler_of(run, steps=STEPS.get(sampler.kind)).sample(run, "last", count, SEED).values
                pictures["samples"] = folder / f"samples-{step:08d}.png"
                plots.samples(v, run.image_shape, pictures["samples"], columns=6)
    except UserError as error:  # a model of the user's own that has no sampler, replicas of a deep one
        print(f"no preview: {error}", file=sys.stderr)
    return {name: path for name, path in pictures.items() if path.is_file()}
