"""What an evaluation does not know it says, in the table, in eval.json and in the plot; rates are not averaged."""

import json
import math
from pathlib import Path

import pytest
import torch
from matplotlib.axes import Axes

from eblvm.engine.cli import main
from eblvm.engine.runs import checkpoint

TRAIN = "train checkerboard --method dsm --latent 4 --steps 4 --validations 1 --log-every 2".split()
EVAL = "--ais --chains 60 --temperatures 100".split()
WHY = "not known: chains from different starts have not mixed (R-hat "


@pytest.fixture
def unmixed(tmp_path: Path) -> Path:
    """A run whose model has two modes that no chain crosses between; the data are in the light one."""
    out = tmp_path / "unmixed"
    assert main([*TRAIN, "--out", str(out)]) == 0
    path = checkpoint.path_of(out / "checkpoints", 4)
    payload = checkpoint.read(path)
    theta = payload["best"]["theta"]
    theta["W"] = torch.tensor([[2.0, 2.0, -2.3, -2.3]] * 2)
    theta["c"] = torch.zeros(4)
    theta["b"], theta["log_sigma"] = torch.zeros(2), torch.zeros(2)
    checkpoint.write(path, payload)
    return out


def test_chains_that_have_not_mixed(unmixed: Path, tmp_path: Path, monkeypatch, capsys) -> None:
    assert main(["eval", str(unmixed), *EVAL]) == 0
    table = capsys.readouterr().out
    facts = json.loads((unmixed / "eval.json").read_text())
    for name in ("log_z", "valid_log_likelihood", "test_log_likelihood"):
        assert facts["mean"][name].startswith(WHY)
        assert f"  {name:28} {WHY}" in table
    assert facts["mean"]["log_z_r_hat"] > 1.05
    assert "log_z_reverse" not in facts["mean"]
    assert facts["mean"]["samples_r_hat"] > 1.05
    assert main(["eval", str(unmixed)]) == 0  # exact, which is a figure
    exact = json.loads((unmixed / "eval.json").read_text())["mean"]["log_z"]
    assert facts["mean"]["log_z_bound"] < exact + 0.5
    # Beside a run that is known, in one table and one plot.
    known = tmp_path / "known"
    assert main([*TRAIN, "--out", str(known)]) == 0
    assert main(["eval", str(known), *EVAL]) == 0
    assert main(["eval", str(unmixed), *EVAL]) == 0
    words: list[str] = []
    monkeypatch.setattr(Axes, "text", lambda self, x, y, text, **_: words.append(text))
    monkeypatch.chdir(tmp_path)
    capsys.readouterr()
    assert main(["eval", "--compare", str(unmixed), str(known), "--json", "table.json"]) == 0
    assert f"| {WHY}" in capsys.readouterr().out
    assert "not known" in words
    assert json.loads(Path("table.json").read_text())["log_z"]["unmixed"][0].startswith(WHY)


def test_samples_say_how_far_their_chains_have_mixed(unmixed: Path, capsys) -> None:
    assert main(["sample", str(unmixed), "--count", "10", "--steps", "100"]) == 0
    assert "these samples may miss most of the model: chains from different starts" in capsys.readouterr().out
    facts = json.loads((unmixed / "samples.json").read_text())
    assert facts["r_hat"] > 1.05
    assert set(facts["free_energy"]) == {"noise", "data", "annealing", "tempering"}
    assert main(["sample", str(unmixed), "--count", "10", "--steps", "3"]) == 0
    assert "too few to see whether chains mix" in capsys.readouterr().out


def test_figures_are_averaged_over_seeds_and_never_over_learning_rates(tmp_path: Path, capsys) -> None:
    out = tmp_path / "rates"
    assert main([*TRAIN, "--replicas", "2", "--lr", "1e-4,1e-1", "--out", str(out)]) == 0
    assert main(["eval", str(out)]) == 0
    facts = json.loads((out / "eval.json").read_text())
    by_replica = [row["test_log_likelihood"] for row in facts["replicas"]]
    assert "test_log_likelihood" not in facts["mean"]
    for i, rate in enumerate(("lr=0.0001", "lr=0.1")):
        assert facts["mean"][f"test_log_likelihood {rate}"] == pytest.approx(sum(by_replica[2 * i : 2 * i + 2]) / 2)
    assert "test_log_likelihood lr=0.1" in capsys.readouterr().out
    assert main(["report", str(out), "--json", str(tmp_path / "report.json")]) == 0
    last = json.loads((tmp_path / "report.json").read_text())["last"]
    assert {"loss lr=0.0001", "loss lr=0.1"} <= set(last)
    assert "loss" not in last


def test_a_figure_that_is_not_a_number_is_not_known(unmixed: Path, monkeypatch, capsys) -> None:
    monkeypatch.setattr("eblvm.engine.evaluation.metrics.likelihood.score_matching_loss", lambda *_: math.nan)
    assert main(["eval", str(unmixed)]) == 0
    facts = json.loads((unmixed / "eval.json").read_text(), parse_constant=lambda name: pytest.fail(name))
    assert facts["mean"]["test_fisher"] == "not known: it came out as nan"
