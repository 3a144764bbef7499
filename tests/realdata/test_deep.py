"""The deep recipes on real images: a few steps of each, and small MNIST from training to samples."""

import json
from pathlib import Path

import pytest
import torch

from eblvm.engine.cli import main
from eblvm.engine.evaluation import classification, losses

pytestmark = pytest.mark.realdata
TINY = "--width 2 --depth 12 --batch 4 --validations 1 --posterior-width 2 --head-width 8".split()


@pytest.mark.parametrize(("recipe", "data"), [("cifar10", "cifar10_10k_2k.npz"), ("celeba64", "celeba")])
def test_twenty_steps(recipe: str, data: str, real_data: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    options = [*TINY, "--steps", "20", "--N", "1", "--checkpoint", "blocks", "--log-every", "5"]
    assert main(["train", recipe, "--data", str(real_data / data), *options, "--out", str(out)]) == 0
    rows = [json.loads(line) for line in (out / "stats.jsonl").read_text().splitlines()]
    assert rows[-1]["step"] == 20
    assert {"loss", "lower", "loss_low_sigma", "loss_middle_sigma", "loss_high_sigma", "validation"} <= set(rows[-1])


@pytest.mark.parametrize("recipe", ["mnist", "cifar10", "svhn", "celeba32", "celeba64"])
def test_dry_run_prints_the_config(recipe: str, capsys) -> None:
    assert main(["train", recipe, "--dry-run"]) == 0
    shown = dict(line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines())
    assert (shown["recipe"], shown["model"], shown["K"], shown["N"], shown["latent"]) == (
        recipe,
        "deep",
        "5",
        "0",
        "50",
    )


def test_small_mnist_trains_samples_and_evaluates(real_data: Path, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(classification, "FITTED", 500)
    monkeypatch.setattr(losses, "TESTED", 100)
    out = tmp_path / "run"
    options = [*TINY, "--steps", "60", "--batch", "16", "--log-every", "20", "--lr", "3e-3"]
    assert main(["train", "mnist", "--small", "--data", str(real_data / "mnist.npz"), *options, "--out", str(out)]) == 0
    rows = [json.loads(line) for line in (out / "stats.jsonl").read_text().splitlines()]
    assert rows[-1]["loss"] < rows[0]["loss"]
    for kind, count in (("given-h", 8), ("joint", 8), ("conditional", 8), ("interpolation", 80)):
        assert main(["sample", str(out), "--count", "8", "--steps", "20", "--kind", kind]) == 0
        v = torch.load(out / f"samples-{kind}.pt", weights_only=True)
        assert v.shape == (count, 1, 16, 16)
        assert v.isfinite().all()
        assert (out / f"samples-{kind}.png").stat().st_size > 0
    assert main(["eval", str(out), "--model", "ema"]) == 0
    means = json.loads((out / "eval.json").read_text())["mean"]
    assert 0.3 < means["svm_posterior_accuracy"] <= 1
    assert 0.7 < means["svm_pixels_accuracy"] <= 1
    assert means["test_divergence"] > 0
