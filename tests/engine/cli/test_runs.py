"""`eblvm runs` and `eblvm sweep`: lists, comparisons and rows from run folders."""

import fcntl
import json
from pathlib import Path

import pytest

from eblvm.engine.cli import main
from eblvm.engine.training.loop import train
from tests.engine.training.test_loop import small


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    train(small(steps=20, checkpoint_every=10), folder / "a")
    train(small(steps=20, checkpoint_every=10, lr=(1e-4,)), folder / "deeper" / "b")
    (folder / "notes").mkdir()
    return folder


def test_the_list(runs: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    with (runs / "a" / ".lock").open("r+b") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert main(["runs", str(runs), "--json", str(tmp_path / "runs.json")]) == 0
    listed = json.loads((tmp_path / "runs.json").read_text())["runs"]
    assert [(Path(r["run"]).name, r["state"], r["step"]) for r in listed] == [
        ("a", "training", 20),
        ("b", "complete", 20),
    ]
    rows = [json.loads(line) for line in (runs / "a" / "stats.jsonl").read_text().splitlines()]
    assert listed[0]["best"]["validation"] == min(r["validation"] for r in rows if "validation" in r)
    assert "next: eblvm runs show" in capsys.readouterr().out
    assert main(["runs", str(runs / "notes")]) == 0
    assert "start one: eblvm train" in capsys.readouterr().out
    assert main(["runs", str(runs / "nowhere")]) == 2


def test_show_and_compare(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["runs", "show", str(runs / "deeper" / "b")]) == 0
    shown = capsys.readouterr().out
    assert "eblvm train checkerboard4 --method dsm" in shown
    assert "--lr 0.0001" in shown
    assert "next: eblvm eval" in shown
    assert main(["runs", "compare", str(runs / "a"), str(runs / "deeper" / "b")]) == 0
    table = capsys.readouterr().out
    line = next(line for line in table.splitlines() if line.startswith("lr "))
    assert "(0.001,)" in line
    assert "(0.0001,)" in line
    assert not [line for line in table.splitlines() if line.startswith("batch ")]
    assert main(["runs", "compare", str(runs / "a")]) == 2


def test_clean_lists_first_and_keeps_the_newest(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = runs / "a"
    (folder / "drawn" / "x").mkdir(parents=True)
    (folder / "drawn" / "x" / "0.pt").write_bytes(b"12")
    before = sorted(folder.rglob("*"))
    assert main(["runs", "clean", str(folder)]) == 0
    assert sorted(folder.rglob("*")) == before
    assert f"next: eblvm runs clean {folder} --yes" in capsys.readouterr().out
    assert main(["runs", "clean", str(folder), "--yes"]) == 0
    assert [p.name for p in (folder / "checkpoints").glob("*.pt")] == ["step-00000020.pt"]
    assert not (folder / "drawn").exists()
    assert main(["runs", "clean", str(folder)]) == 0
    assert "0 files" in capsys.readouterr().out


def test_a_sweep_has_a_row_for_every_seed_and_rate(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = "--method dsm --lr 1e-3,1e-2 --replicas 2 --seed 5 --steps 12 --log-every 6 --validations 2".split()
    out, file = tmp_path / "sweep", tmp_path / "rows.json"
    assert main(["sweep", "checkerboard", *arguments, "--out", str(out), "--json", str(file)]) == 0
    rows = json.loads(file.read_text())["rows"]
    assert [(r[1], r[2]) for r in rows] == [(5, 1e-3), (6, 1e-3), (5, 1e-2), (6, 1e-2)]
    last = json.loads((out / "stats.jsonl").read_text().splitlines()[-1])
    assert [r[3] for r in rows] == last["loss"]
    assert "next: eblvm eval" in capsys.readouterr().out
    assert main(["sweep", "checkerboard", "--out", str(tmp_path / "one")]) == 2
    assert "add --replicas" in capsys.readouterr().err
