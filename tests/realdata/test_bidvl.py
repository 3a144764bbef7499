"""BiDVL's recipes on real images: a few steps and all evaluation figures of each kind of net."""

import json
from pathlib import Path

import numpy as np
import pytest

from eblvm.engine.cli import main

pytestmark = pytest.mark.realdata
TINY = "--width 2 --posterior-width 2 --generator-width 2 --latent 4 --batch 4 --validations 1".split()


@pytest.mark.parametrize(
    ("recipe", "data", "options"),
    [
        ("cifar10", "cifar10_10k_2k.npz", ["--small"]),
        ("cifar10", "cifar10_10k_2k.npz", "--model sn-resnet --upper hinge --output real".split()),
        ("mnist", "mnist.npz", ["--small"]),
    ],
    ids=["conv", "resnet", "grey"],
)
def test_ten_steps_and_all_figures(recipe: str, data: str, options: list[str], real_data: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    with np.load(real_data / data) as whole:
        np.savez(tmp_path / data, **{name: whole[name][:300] for name in whole.files})
    given = ["--data", str(tmp_path / data), *TINY, *options, "--steps", "10", "--log-every", "5"]
    assert main(["train", recipe, "--method", "bidvl", *given, "--out", str(out)]) == 0
    rows = [json.loads(line) for line in (out / "stats.jsonl").read_text().splitlines()]
    assert {"loss", "lower", "energy_data", "energy_model", "reconstruction", "latent", "validation"} <= set(rows[-1])
    ood = [] if recipe == "mnist" else ["--ood", f"svhn={real_data / 'svhn_test_5k.npz'}"]
    assert main(["eval", str(out), *ood]) == 0
    means = json.loads((out / "eval.json").read_text())["mean"]
    assert {"reconstruction_rmse", "reconstruction_rmse_of_mean", "auroc_uniform"} <= set(means)
    assert ("auroc_svhn" in means) == bool(ood)


@pytest.mark.parametrize("small", [[], ["--small"]])
@pytest.mark.parametrize("recipe", ["cifar10", "svhn", "celeba32", "celeba64", "celeba128"])
def test_dry_run_shows_the_published_settings(recipe: str, small: list[str], capsys) -> None:
    assert main(["train", recipe, "--method", "bidvl", *small, "--dry-run"]) == 0
    shown = dict(line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines())
    ratio = "0.1" if recipe == "celeba64" else "0.05"
    weight_decay = "0.0" if recipe == "celeba128" else "0.0001"
    assert (shown["beta1"], shown["beta2"], shown["decay"]) == ("0.0", "0.9", "0.998")
    assert (shown["weight_decay"], shown["ratio"]) == (weight_decay, ratio)
    if not small:
        rates = {"celeba128": ("(0.0002,)", "0.0002", "36"), "celeba64": ("(0.0001,)", "0.0003", "50")}
        expected = rates.get(recipe, ("(0.0001,)", "0.0003", "100"))
        assert (shown["lr"], shown["lower_lr"], shown["batch"]) == expected
