"""The Frey face recipe on the real images."""

import json
from pathlib import Path

import pytest

from eblvm.engine.cli import main

pytestmark = pytest.mark.realdata


def test_freyface_trains_and_evaluates(real_data: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    options = "--method dsm --steps 300 --validations 3 --latent 50 --lr 1e-3".split()
    assert main(["train", "freyface", "--data", str(real_data / "frey.npz"), *options, "--out", str(out)]) == 0
    assert main(["eval", str(out), "--chains", "100", "--temperatures", "50"]) == 0
    facts = json.loads((out / "eval.json").read_text())
    assert facts["likelihood"] == "AIS, 100 chains x 50 temperatures"
    assert facts["mean"]["test_fisher"] < -500  # from about +200 at the start
    rows = [json.loads(line) for line in (out / "stats.jsonl").read_text().splitlines()]
    losses = [row["validation"] for row in rows if "validation" in row]
    assert losses == sorted(losses, reverse=True)
