"""Energies of training and test data, and of v with its own h and with another's, by the GRBM's closed forms."""

from pathlib import Path

import pytest
import torch

from eblvm.engine import recipes
from eblvm.engine.evaluation.energies import ENERGY_SAMPLES, energies
from eblvm.engine.evaluation.eval_model import eval_models
from eblvm.engine.runs.saved import SavedRun
from eblvm.engine.training.loop import train


def test_energies_of_a_grbm(tmp_path: Path) -> None:
    train(recipes.points("checkerboard4", "dsm").replaced(steps=2, replicas=2), tmp_path)
    run = SavedRun.open(tmp_path)
    rows = energies(run, eval_models(run, "last"))
    assert len(rows) == 2
    for row, theta in zip(rows, run.thetas("last"), strict=True):
        W, b, c, sigma = theta["W"], theta["b"], theta["c"], theta["log_sigma"].exp()

        def quadratic(v: torch.Tensor, b: torch.Tensor = b, sigma: torch.Tensor = sigma) -> torch.Tensor:
            return 0.5 * ((v - b) / sigma).square().sum(1)

        for name, v in (("train", run.dataset.train), ("test", run.dataset.test)):
            v = v[:ENERGY_SAMPLES]
            free = quadratic(v) - (1 + (c + v @ W).exp()).log().sum(1)
            assert row[f"energy_{name}"] == pytest.approx(float(free.mean()), rel=1e-5)
        v = run.dataset.test[:ENERGY_SAMPLES]
        h = torch.sigmoid(c + v @ W)
        for name, latent in (("own", h), ("other", torch.cat([h[-1:], h[:-1]]))):
            energy = quadratic(v) - ((c + v @ W) * latent).sum(1)
            assert row[f"energy_{name}_h"] == pytest.approx(float(energy.mean()), rel=1e-5)
    assert (tmp_path / "energies.png").stat().st_size > 1000
    assert (tmp_path / "energies-h.png").stat().st_size > 1000
