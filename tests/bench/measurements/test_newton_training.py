"""Figures of runs by their way to the gradient, collected from their folders."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from eblvm.bench.measurements import newton_training
from eblvm.engine.errors import UserError
from eblvm.engine.recipes import recipe
from eblvm.engine.training.loop import train

TINY = {"width": 4, "depth": 1, "head_width": 4, "posterior_width": 4, "batch": 16, "steps": 4, "validations": 0}


def test_a_row_has_a_figure_for_every_replica(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(newton_training, "grid_log_likelihood", partial(newton_training.grid_log_likelihood, size=8))
    ways = {"n0": {"N": 0}, "newton": {"best_response": "newton"}, "vages": {"method": "vages-dsm"}}
    rows = {}
    for name, changes in ways.items():
        config = recipe("checkerboard", model="mlp", method=changes.pop("method", "bidsm"))
        train(config.replaced(**TINY, replicas=2, log_every=1, **changes), tmp_path / name)
        rows[name] = newton_training.row(tmp_path / name)
    for row in rows.values():
        assert row["svm"] is row["svm_of_response"] is None
        assert all(len(row[f]) == 2 for f in ("log_likelihood", "loss", "test_loss", "test_fisher_of_q", "spread"))
        assert row["log_likelihood"][0] != row["log_likelihood"][1]
    assert max(rows["newton"]["spread"]) < min(rows["n0"]["spread"])
    assert "--best-response newton" in str(newton_training.table({"rows": list(rows.values())}))


def test_no_folders_is_one_sentence(run: Callable[..., None]) -> None:
    with pytest.raises(UserError, match="needs a name and finished runs; give --name and --runs"):
        run("bench", "newton-training", "--name", "board")
