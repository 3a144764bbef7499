"""BiDVL from training to figures and pictures on the embedded digits."""

import json
from pathlib import Path

import pytest
import torch

from eblvm.engine.cli import main


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("bidvl") / "run"
    options = "--width 8 --posterior-width 8 --generator-width 8 --steps 150 --batch 50 --log-every 50".split()
    assert main(["train", "digits", "--method", "bidvl", *options, "--out", str(out)]) == 0
    return out


def test_digits_train_and_evaluate(run: Path) -> None:
    assert main(["eval", str(run)]) == 0
    means = json.loads((run / "eval.json").read_text())["mean"]
    assert means["reconstruction_rmse"] < 0.95 * means["reconstruction_rmse_of_mean"]
    assert means["auroc_uniform"] > 0.9
    for name in ("samples", "reconstruction", "neighbours"):
        assert (run / f"{name}.png").stat().st_size > 1000


def test_samples_of_every_kind(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for kind, count in (("marginal", 6), ("given-h", 6), ("interpolation", 60)):
        assert main(["sample", str(run), "--count", "6", "--kind", kind]) == 0
        v = torch.load(run / f"samples-{kind}.pt", weights_only=True)
        assert v.shape == (count, 1, 8, 8)
        assert 0 <= v.min() < v.max() <= 1
    assert main(["sample", str(run), "--kind", "conditional"]) == 2
    assert "valid: marginal, given-h, interpolation" in capsys.readouterr().err
    assert main(["sample", str(run), "--steps", "5"]) == 2
    assert "remove --steps" in capsys.readouterr().err


def test_an_interpolation_ends_at_two_reconstructions(run: Path) -> None:
    for kind, count in (("given-h", 4), ("interpolation", 2)):
        assert main(["sample", str(run), "--count", str(count), "--kind", kind]) == 0
    line = torch.load(run / "samples-interpolation.pt", weights_only=True).view(2, 10, 1, 8, 8)
    ends = torch.load(run / "samples-given-h.pt", weights_only=True)
    torch.testing.assert_close(line[:, 0], ends[0::2])
    torch.testing.assert_close(line[:, -1], ends[1::2])


def test_other_data_sets(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["eval", str(run), "--ood", "other=nowhere.npz"]) == 2
    assert "nowhere.npz does not exist" in capsys.readouterr().err
