"""The page of all records and the list for github-action-benchmark."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from eblvm.bench.tools import action, history, record, records
from eblvm.engine.errors import UserError


def written(folder: Path, date: str, commit: str, ms: float, cpu: str = "Fast <CPU>") -> None:
    rows = [{"case": "N=0", "ms": ms, "ratio": 2.0, "naive_ms": None}, {"case": "N=5", "ms": 2 * ms}]
    facts = {"cpu": cpu, "cores": 2, "system": "Linux"}
    content: dict[str, Any] = {"schema": "s/1", "name": "deep", "command": "eblvm bench deep", "date": date}
    content |= {"machine": facts, "commit": commit, "rows": rows}
    folder.mkdir(exist_ok=True)
    record.write(content, folder)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "records"
    written(folder, "2026-11-01", "aaa", 20.0)
    written(folder, "2026-11-02", "bbb", 10.0)
    written(folder, "2026-11-03", "ccc", 11.0)
    (folder / "gates.json").write_text('{"schema": "eblvm-gates/1"}')  # no record over commits
    return folder


def test_history_has_a_chart_per_row_and_figure(run: Callable[..., None], folder: Path, tmp_path: Path) -> None:
    run("bench", "history", "--json", str(folder), "--html", str(tmp_path / "page.html"))
    page = (tmp_path / "page.html").read_text()
    assert page.count("<svg") == 3  # ms and ratio of N=0, ms of N=5
    commits = re.findall(r"<title>(\S+) (\w+): ([\d.]+) ms \(Fast &lt;CPU&gt;\)", page)
    assert commits[:3] == [("2026-11-01", "aaa", "20"), ("2026-11-02", "bbb", "10"), ("2026-11-03", "ccc", "11")]
    assert "less is better; +10.0 % since bbb" in page
    assert "<script" not in page
    assert not re.findall(r'(?:src|href)="(?!#)', page)  # nothing is fetched


def test_another_machine_is_no_change(folder: Path) -> None:
    written(folder, "2026-11-04", "ddd", 30.0, cpu="slow")
    points = history.collect(history.load(folder))["deep"]["N=0"]["ms"]
    assert [p.commit for p in points] == ["aaa", "bbb", "ccc", "ddd"]
    assert history.changed(points) == ""
    assert history.chart("ms", points, ["Fast <CPU>", "slow"]).count("<polyline") == 2


def test_the_records_of_the_repository_have_charts() -> None:
    by_name = history.collect(history.load(records.RECORDS))
    assert {"grbm", "toy", "deep", "vages", "bidvl", "kernels"} <= by_name.keys()
    assert all(len(figures["engine_ms"]) > 1 for figures in by_name["grbm"].values())


def test_action_has_what_is_better_when_it_falls(run: Callable[..., None], folder: Path, tmp_path: Path) -> None:
    run("bench", "history", "--json", str(folder), "--action", str(tmp_path / "action.json"))
    entries = json.loads((tmp_path / "action.json").read_text())
    assert [(e["name"], e["unit"], e["value"]) for e in entries] == [
        ("deep: N=0: time of a step", "ms", 11.0),
        ("deep: N=5: time of a step", "ms", 22.0),
    ]


def test_action_of_pytest_benchmark() -> None:
    done = SimpleNamespace(name="step", stats=SimpleNamespace(data=[0.001, 0.002, 0.009]))
    failed = SimpleNamespace(name="failed", stats=SimpleNamespace(data=[]))
    (entry,) = action.of_benchmarks([done, failed])
    assert (entry["name"], entry["unit"], entry["value"]) == ("step", "ms", 2.0)


def test_history_says_what_it_needs(run: Callable[..., None], tmp_path: Path) -> None:
    with pytest.raises(UserError, match="needs --html FILE"):
        run("bench", "history")
    with pytest.raises(UserError, match="is no folder of records"):
        run("bench", "history", "--html", "x.html", "--json", str(tmp_path / "none"))
    with pytest.raises(UserError, match="unknown option '--html'"):
        run("bench", "toy", "--html", "x.html")
