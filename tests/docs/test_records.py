"""No page is older than its record, no record than the code that it measured.

Pages are rendered again and compared by tests/bench/pages. Here: a page shows the newest record of each kind, its
pictures and hand-set tables are of that record, and a record's counts (bytes, FLOPs, operators: the same on every
machine) are those of today's code, to 2 %. Times cannot be held to that: they are as old as their commit says.
"""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from eblvm.bench import profile_command
from eblvm.bench.contestants.steps import CaseStep
from eblvm.bench.suites import bidvl, deep, profile, ratios, vages
from eblvm.bench.tools import gates, record, registry
from eblvm.bench.tools.registry import Case
from eblvm.engine import recipes
from eblvm.engine.planning import plan
from eblvm.engine.planning.footprint import footprint
from eblvm.engine.plotting import facts_digest
from eblvm.kernels import backends

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
PROFILES = sorted(record.RECORDS.glob("profile-*.json"))
ALLOWED = gates.ALLOWED
UNITS = {
    "saved_mib": ("saved_bytes", 2**20),
    "peak_mib": ("peak_bytes", 2**20),
    "gflop": ("flops", 1e9),
    "ops": ("ops", 1),
}
native = pytest.mark.skipif(
    not any(b.op == "philox" and b.name == "native" and b.serves for b in backends()),
    reason="the records are of native kernels, which are not built here",
)


def moved(before: float | None, now: float | None) -> bool:
    return before is not None and now is not None and abs(now - before) > ALLOWED * max(abs(before), abs(now))


def records(folder: Path) -> dict[Path, dict[str, Any]]:
    found = {path: json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))}
    return {path: facts for path, facts in found.items() if "machine" in facts}


def test_one_record_of_each_kind_is_shown_and_it_is_the_newest() -> None:
    current: dict[tuple[Any, ...], dict[str, Any]] = {}
    for path, facts in records(record.RECORDS).items():
        kind = record.kind(facts)
        assert kind not in current, f"{path.name} and another are of one kind: move the older to superseded/"
        current[kind] = facts
    older = records(record.RECORDS / record.SUPERSEDED)
    assert older
    for path, facts in older.items():
        assert facts["date"] <= current[record.kind(facts)]["date"], f"{path.name} is newer than what the pages show"


def test_a_new_record_takes_the_place_of_the_old_one(tmp_path: Path) -> None:
    facts = record.make("s/1", "toy", "eblvm bench toy", "cpu", {"rows": []})
    (tmp_path / "toy-other.json").write_text(json.dumps(facts | {"date": "2020-01-01", "commit": "before"}))
    (tmp_path / "toy-gpu.json").write_text(json.dumps(facts | {"machine": {"gpu": "a"}}))
    written = record.write(facts, tmp_path)
    assert {p.name for p in tmp_path.glob("*.json")} == {written.name, "toy-gpu.json"}
    assert [p.name for p in (tmp_path / "superseded").iterdir()] == ["toy-other.json"]
    assert record.write(facts, tmp_path) == written


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_records_that_a_page_names_are_there(page: Path) -> None:
    for name in re.findall(r"(?:bench/records/)?([\w.*-]+\.json)`", page.read_text()):
        if re.search(r"-20\d\d-\d\d-\d\d-|^study-", name):
            assert list(record.RECORDS.glob(name)), f"{name} is not in bench/records, or superseded"


@pytest.mark.parametrize("path", PROFILES, ids=lambda path: json.loads(path.read_text())["name"])
def test_pictures_are_of_their_records(path: Path) -> None:
    """`python -m eblvm.bench.pages.performance` draws them again."""
    facts = json.loads(path.read_text())
    assert Image.open(ROOT / "docs" / f"{facts['name']}.png").text["Description"] == facts_digest(facts["rows"])


def test_the_plan_in_the_page_on_scale() -> None:
    """The table and the picture are of the record that the page names, and the record is of this code."""
    text = (ROOT / "docs" / "scale.md").read_text()
    (name,) = re.findall(r"`bench/records/(plan-[^`]+)`", text)
    facts = json.loads((record.RECORDS / name).read_text())
    digits = {"state_mib": 0, "saved_mib": 0, "peak_mib": 0, "total_mib": 0, "tflop": 2, "sent_mib": 0}
    for row in facts["rows"]:
        cells = [row["N"], row["checkpoint"], row["precision"], *(f"{row[n]:.{d}f}" for n, d in digits.items())]
        assert f"| {' | '.join(map(str, cells))} |\n" in text
    assert Image.open(ROOT / "docs" / "plan-celeba64.png").text["Description"] == facts_digest(facts["rows"])
    row = facts["rows"][0]
    assert (row["N"], row["checkpoint"], row["precision"]) == (0, "none", "fp32")
    config = recipes.recipe("celeba64").replaced(N=0, batch=row["micro_batch"])
    cost = plan.step_cost(config, config.shape)
    assert not moved(row["saved_mib"], cost.saved_bytes / 2**20)
    assert not moved(row["peak_mib"], (cost.total_bytes - cost.state_bytes) / 2**20)


def test_the_package_installs_and_works_on_clean_machines() -> None:
    """`.ci/install --json bench/records` installs it again; see there."""
    (found,) = record.read_all(record.RECORDS, "install-*.json", "eblvm-install/3")
    failed = [
        f"{machine['machine']}: {step['command']}"
        for machine in found["machines"]
        for step in machine["steps"]
        if step["exit_code"] or not step.get("kept_torch", True)
    ]
    assert failed == []
    assert {machine["python"].rpartition(".")[0] for machine in found["machines"]} >= {"3.11", "3.12"}
    for machine in found["machines"]:
        said = [line for step in machine["steps"] if "train" in step["command"] for line in step["said"]]
        notices = [line for line in said if line.startswith("native kernels are not built")]
        assert len(notices) == (0 if machine["compiler"] else 1), machine["machine"]
    assert {facts["exit_code"] for facts in found["resolved"]["python"].values()} == {0}
    assert not re.search(r"/tmp|/opt|/root|/home|://", json.dumps(found))


@native
@pytest.mark.parametrize("suite", ["toy", "grbm"])
def test_counts_of_a_suite_are_those_of_its_record(suite: str) -> None:
    """`eblvm bench SUITE --json bench/records` measures again."""
    torch.set_num_threads(1)
    (found,) = [r for r in record.read_all(record.RECORDS, f"{suite}-*.json", ratios.SCHEMA) if not r["compiled"]]
    rows = {row["case"]: row for row in found["rows"]}
    cases = {case.name: case for case in registry.cases(suite)}
    assert set(rows) == set(cases), "the suite has other cases than its record"
    stale = []
    for name, case in cases.items():
        now = gates.measure(CaseStep(case))
        for figure, (counted, unit) in UNITS.items():
            value = None if now[counted] is None else now[counted] / unit
            if moved(rows[name][figure], value):
                stale.append(f"{name}: {figure} {rows[name][figure]} -> {value}")
    assert stale == [], f"{found['file']} is older than the code"


@pytest.mark.parametrize(
    ("suite", "module", "cases"),
    [
        ("deep", deep, lambda: deep.cases()),
        ("vages", vages, lambda: vages.deep_cases()),
        ("bidvl", bidvl, lambda: bidvl.cases()),
    ],
)
def test_cases_of_a_suite_are_those_of_its_record(suite: str, module: Any, cases: Any) -> None:
    records = record.read_all(record.RECORDS, f"{suite}-*.json", module.SCHEMA)
    (found,) = [r for r in records if r["name"] == suite]
    assert {case.name for case in cases()} <= {row["case"] for row in found["rows"]}


@native
@pytest.mark.parametrize("path", PROFILES, ids=lambda path: json.loads(path.read_text())["name"])
def test_operators_of_a_profile_are_those_of_its_record(path: Path) -> None:
    """Of its first point, with four samples: operators do not depend on how many."""
    facts = json.loads(path.read_text())
    config, arguments = profile_command.parsed(facts["command"].split()[2:])
    point = profile.points(config, profile_command.axes_and_series(arguments))[0]
    step = CaseStep(Case(point.config.replaced(batch=4), point.config.shape))
    step()
    now = footprint(step, step.inputs, False).ops
    row = facts["rows"][0]
    assert {name: row[name] for name in point.axes} == point.axes
    assert not moved(row["ops"], now), f"{path.name} is older than the code: {row['ops']} -> {now} operators"
