"""`eblvm reproduce`: every row is a run that exists, its cost is recorded, and a killed experiment continues."""

import json
from pathlib import Path
from typing import Any

import pytest

from eblvm.bench import reproduce_command
from eblvm.bench.reproduce import costs, listing, running
from eblvm.bench.reproduce.experiments import Experiment, Row, experiments, find
from eblvm.engine import evaluation
from eblvm.engine.cli import main
from eblvm.engine.errors import UserError

TINY = Experiment(
    "bism-tiny",
    "two methods on points",
    (
        Row("DSM", "checkerboard --method dsm --replicas 2 --validations 0", {"test_log_likelihood": 0.3}),
        Row("BiDSM", "checkerboard --method bidsm --replicas 2 --validations 0", beside="DSM"),
    ),
    ("test_log_likelihood", "test_fisher"),
    seeds=2,
    picture="checkerboard",
)


def silently(sentence: str) -> None: ...


def test_every_row_is_a_configuration_of_its_own_method() -> None:
    for e in experiments().values():
        assert e.rows, e.name
        assert e.rows[0].paper or e.says, f"{e.name}: what does the paper show?"
        for row in (*e.rows, *e.small):
            if row.train:
                config = running.config_of(row.train)
                assert f"--method {config.method.kind}" in row.train
                if not e.data:
                    config.check()
            assert not row.beside or row.beside in [r.label for r in e.rows]
        labels = [running.slug(row.label) for row in e.rows]
        assert len(set(labels)) == len(labels)


def test_costs_of_all_rows_are_recorded_and_are_those_of_today() -> None:
    """Fails when recipes or steps changed: `eblvm reproduce --costs` counts again."""
    kept = costs.kept()
    assert set(kept) == {row.train for row in costs.rows()}
    for name in ("bism-table1", "vages-fig5", "bidvl-table2"):
        row = find(name).rows[0]
        assert costs.count(running.config_of(row.train)) == pytest.approx(kept[row.train], rel=0.02)


def test_an_interrupted_experiment_continues_to_the_same_figures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = running.run(TINY, running.Settings(tmp_path / "whole", steps=6), silently)
    evaluate = evaluation.evaluate

    def killed_in_the_second_row(run: Any, *rest: Any) -> Any:
        if run.folder.name == "bidsm":
            raise KeyboardInterrupt
        return evaluate(run, *rest)

    monkeypatch.setattr(evaluation, "evaluate", killed_in_the_second_row)
    settings = running.Settings(tmp_path / "parts", steps=6)
    with pytest.raises(KeyboardInterrupt):
        running.run(TINY, settings, silently)
    partial = json.loads((tmp_path / "parts" / "reproduce.json").read_text())
    assert [row["label"] for row in partial["rows"]] == ["DSM"]
    monkeypatch.setattr(evaluation, "evaluate", evaluate)
    said: list[str] = []
    again = running.run(TINY, settings, said.append)
    assert whole is not None
    assert again is not None
    assert [row["by_seed"] for row in again["rows"]] == [row["by_seed"] for row in whole["rows"]]
    assert sum("is complete" in sentence for sentence in said) == 2  # nothing was trained twice
    assert again["curves"] == whole["curves"]
    for name in ("densities.png", "curves.png", "dsm-density.png"):
        assert (tmp_path / "parts" / name).is_file()


def test_an_interrupted_training_ends_the_experiment_without_figures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("eblvm.engine.training.loop.train", lambda *_: False)
    said: list[str] = []
    assert running.run(TINY, running.Settings(tmp_path, steps=6), said.append) is None
    assert "continues" in said[-1]


FACTS = {
    "experiment": "bism-table1", "seeds": 3, "small": False, "steps": None, "date": "2026-01-01",
    "rows": [
        {"label": "DSM", "paper": {"test_fisher": -5000.0}, "beside": "", "mean": {"test_fisher": -5010.0},
         "deviation": {"test_fisher": 2.0}},
        {"label": "BiDSM", "paper": {}, "beside": "DSM", "mean": {"test_fisher": -5009.0},
         "deviation": {"test_fisher": 3.0}},
    ],
}  # fmt: skip


def test_paper_and_ours_stand_side_by_side() -> None:
    first, second = listing.side_by_side(FACTS).splitlines()[1:]
    assert first.split() == ["DSM", "Fisher", "-5000", "-5010", "+-", "2", "-10", "-"]
    assert second.split() == ["BiDSM", "Fisher", "as", "DSM", "-5009", "+-", "3", "+1", "-"]


def test_a_figure_that_is_not_known_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    why = "not known: chains have not mixed (R-hat 1.42)"
    facts = FACTS | {"rows": [FACTS["rows"][0], FACTS["rows"][1] | {"mean": {"test_fisher": why}}]}
    _, first, second, reason = listing.side_by_side(facts).splitlines()
    assert first.split()[-2] == "-10"
    assert second.split() == ["BiDSM", "Fisher", "as", "DSM", "not", "known", "-", "-"]
    assert reason == f"BiDSM, Fisher: {why}"
    monkeypatch.setattr(listing, "RECORDS", tmp_path)
    (tmp_path / "reproduce-bism-table1.jsonl").write_text(json.dumps(facts))
    assert listing.state(find("bism-table1")).startswith("run: Fisher within 0.2 % of the paper; 1 figure not known")


def test_a_record_names_no_folders() -> None:
    assert reproduce_command.without_folders(["train", "--data", "/a/b.npz", "--N", "5"]) == "train --data b.npz --N 5"


def test_the_state_is_read_from_the_newest_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listing, "RECORDS", tmp_path)
    table = find("bism-table1")
    assert listing.state(table) == "not run yet"
    assert listing.state(find("bism-table2")) == "waiting for a GPU"
    path = tmp_path / "reproduce-bism-table1.jsonl"
    near = FACTS | {"rows": FACTS["rows"][:1]}
    path.write_text(json.dumps(near))
    assert listing.state(table) == "reproduced: Fisher within 0.2 % of the paper (3 seeds, 2026-01-01)"
    path.write_text(json.dumps(near | {"steps": 50}))
    assert listing.state(table).startswith("run: Fisher within")
    with path.open("a") as file:
        file.write("\n" + json.dumps(FACTS | {"date": "2026-01-02"}))
    assert listing.state(table).startswith("run: Fisher within 0.2 % of the paper; Fisher within 1 of the row beside")


def test_names_and_data_are_checked_before_anything_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["reproduce", "bism-tabel1"]) == 2
    assert "did you mean 'bism-table1'" in capsys.readouterr().err
    with pytest.raises(UserError, match=r"reads frey.npz; give --data"):
        reproduce_command.main(["bism-table1", "--out", str(tmp_path / "new")])
    with pytest.raises(UserError, match="has no small variant"):
        reproduce_command.main(["bism-table2", "--small", "--data", str(tmp_path), "--out", str(tmp_path / "new")])
    assert not (tmp_path / "new").exists()


def test_one_experiment_shows_its_commands_and_the_papers_figures(capsys: pytest.CaptureFixture[str]) -> None:
    reproduce_command.main(["bism-table1", "--data", "frey.npz", "--out", "x"][:3])
    shown = capsys.readouterr().out
    assert "eblvm train freyface --method dsm --replicas 3 --data frey.npz --out DIR/dsm" in shown
    assert "Fisher -5885.09, log-likelihood (nats) 129.23" in shown
    assert "PFLOP" in shown
