"""Histograms of energies: of training against test data, and of v with its own h against another's."""

import torch

from eblvm.engine.evaluation import plots
from eblvm.engine.evaluation.eval_model import EvalModel
from eblvm.engine.evaluation.figures import Figures
from eblvm.engine.runs.saved import SavedRun

ENERGY_SAMPLES = 500  # of each split


def energies(run: SavedRun, judged: list[EvalModel]) -> list[Figures]:
    """By replica the means of -log p~(v) of training and test samples: apart, where a model remembers its training
    data. Of a model with h also those of E(v, h) of test samples at their own posterior means and at those of their
    neighbours: apart, where h is bound to v. The pictures are of the first replica."""
    splits = {"train": run.dataset.train[:ENERGY_SAMPLES], "test": run.dataset.test[:ENERGY_SAMPLES]}
    rows: list[Figures] = []
    for evaluated in judged:
        values = {name: -evaluated.log_densities(run, v).value.double() for name, v in splits.items()}
        pairs = {}
        if evaluated.posterior_mean is not None and evaluated.energy is not None:
            v, h = run.dataset.floats(splits["test"]), evaluated.of_all("posterior_mean", run, splits["test"])
            for name, latent in (("own", h), ("other", h.roll(1, 0))):
                parts = zip(v.split(100), latent.split(100), strict=True)
                with torch.no_grad():
                    pairs[name] = torch.cat([evaluated.energy(*part) for part in parts]).cpu().double()
        if not rows:
            plots.histograms(values, f"minus {evaluated.density}", run.folder / "energies.png")
            if pairs:
                title = "E(v, h) of test samples with their own h and another's"
                plots.histograms(pairs, title, run.folder / "energies-h.png")
        named = {f"energy_{name}": x for name, x in values.items()}
        named |= {f"energy_{name}_h": x for name, x in pairs.items()}
        rows.append({name: float(x.mean()) for name, x in named.items()})
    return rows
