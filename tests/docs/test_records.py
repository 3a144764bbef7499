"""No record is older than the code that it measured.

A record's counts (bytes, FLOPs, operators: the same on every machine) are those of today's code, to 2 %. Times cannot
be held to that: they are as old as their commit says. That no page is older than its record `eblvm bench pages --check`
says, which `make docs` and the bench workflow run.
"""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch

from eblvm.bench import profile_command
from eblvm.bench.contestants.steps import CaseStep
from eblvm.bench.measurements import bidvl, deep, ratios, vages
from eblvm.bench.pages import scale
from eblvm.bench.profiling import profile
from eblvm.bench.tools import gates, record, records, registry
from eblvm.bench.tools.registry import Case
from eblvm.engine import recipes
from eblvm.engine.planning import plan
from eblvm.engine.planning.footprint import footprint
from eblvm.kernels import backends

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
PROFILES = records.newest(records.RECORDS, "profile-*", profile.SCHEMA)
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


@pytest.mark.parametrize("path", records.files(records.RECORDS), ids=lambda path: path.stem)
def test_a_file_has_the_records_of_one_name_with_the_newest_last(path: Path) -> None:
    lines = records.history(path)
    assert {facts["name"] for facts in lines} == {path.stem}
    dates = [facts["date"] for facts in lines]
    assert dates == sorted(dates)
    assert all(facts["commit"] for facts in lines)


def test_every_dated_record_is_a_line_of_a_file() -> None:
    """Tables without a history are `.json` files; bench/tools/records.py names them."""
    assert records.__doc__ is not None
    assert {path.name for path in records.RECORDS.iterdir() if path.suffix != ".jsonl"} == set(
        re.findall(r"[\w-]+\.json\b", records.__doc__)
    )


def test_a_new_record_is_shown_in_place_of_the_old_one(tmp_path: Path) -> None:
    facts = record.make("s/1", "toy", "eblvm bench toy", "cpu", {"rows": []})
    for old in ({"date": "2020-01-01", "commit": "before"}, {"machine": {"gpu": "a"}}):
        record.write(facts | old, tmp_path)
    written = record.write(facts, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [written.name] == ["toy.jsonl"]
    shown = {facts["commit"] for facts in records.newest(tmp_path, "toy", "s/1")}
    assert shown == {facts["commit"]}
    assert len(records.newest(tmp_path, "toy", "s/1")) == 2  # of a GPU, and of this machine
    assert next(line["commit"] for line in records.history(written)) == "before"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_records_that_a_page_names_are_there(page: Path) -> None:
    for name in re.findall(r"(?:bench/records/)?([\w.*-]+\.jsonl)\b", page.read_text()):
        if name not in ("stats.jsonl",):
            assert list(records.RECORDS.glob(name)), f"{name} is not in bench/records"


def test_the_plan_in_the_page_on_scale() -> None:
    """The record is of this code, and the page names it."""
    text = (ROOT / "docs" / "scale.md").read_text()
    (name,) = re.findall(r"`bench/records/(plan-[^`]+)`", text)
    facts = records.read(records.RECORDS / name, scale.SCHEMA)
    row = facts["rows"][0]
    assert (row["N"], row["checkpoint"], row["precision"]) == (0, "none", "fp32")
    config = recipes.recipe("celeba64").replaced(N=0, batch=row["micro_batch"])
    cost = plan.step_cost(config, config.shape)
    assert not moved(row["saved_mib"], cost.saved_bytes / 2**20)
    assert not moved(row["peak_mib"], (cost.total_bytes - cost.state_bytes) / 2**20)


def test_the_package_installs_and_works_on_clean_machines() -> None:
    """`.ci/install --json bench/records` installs it again; see there."""
    (result,) = records.newest(records.RECORDS, "install", "eblvm-install/3")
    failed = [
        f"{machine['machine']}: {step['command']}"
        for machine in result["machines"]
        for step in machine["steps"]
        if step["exit_code"] or not step.get("kept_torch", True)
    ]
    assert failed == []
    assert {machine["python"].rpartition(".")[0] for machine in result["machines"]} >= {"3.11", "3.12"}
    for machine in result["machines"]:
        said = [line for step in machine["steps"] if "train" in step["command"] for line in step["said"]]
        notices = [line for line in said if line.startswith("native kernels are not built")]
        assert len(notices) == (0 if machine["compiler"] else 1), machine["machine"]
    assert {facts["exit_code"] for facts in result["resolved"]["python"].values()} == {0}
    assert not re.search(r"/tmp|/opt|/root|/home|://", json.dumps(result))


@native
@pytest.mark.parametrize("suite", ["toy", "grbm"])
def test_counts_of_a_suite_are_those_of_its_record(suite: str) -> None:
    """`eblvm bench SUITE --json bench/records` measures again."""
    torch.set_num_threads(1)
    (result,) = [r for r in records.newest(records.RECORDS, suite, ratios.SCHEMA) if not r["compiled"]]
    rows = {row["case"]: row for row in result["rows"]}
    cases = {case.name: case for case in registry.cases(suite)}
    assert set(rows) == set(cases), "the suite has other cases than its record"
    stale = []
    for name, case in cases.items():
        now = gates.measure(CaseStep(case))
        for figure, (counted, unit) in UNITS.items():
            value = None if now[counted] is None else now[counted] / unit
            if moved(rows[name][figure], value):
                stale.append(f"{name}: {figure} {rows[name][figure]} -> {value}")
    assert stale == [], f"{result['file']} is older than the code"


@pytest.mark.parametrize(
    ("suite", "module", "cases"),
    [
        ("deep", deep, lambda: deep.cases()),
        ("vages", vages, lambda: vages.deep_cases()),
        ("bidvl", bidvl, lambda: bidvl.cases()),
    ],
)
def test_cases_of_a_suite_are_those_of_its_record(suite: str, module: Any, cases: Any) -> None:
    (result,) = records.newest(records.RECORDS, suite, module.SCHEMA)
    assert {case.name for case in cases()} <= {row["case"] for row in result["rows"]}


@native
@pytest.mark.parametrize("facts", PROFILES, ids=lambda facts: facts["name"])
def test_operators_of_a_profile_are_those_of_its_record(facts: dict[str, Any]) -> None:
    """Of its first point, with four samples: operators do not depend on how many."""
    config, arguments = profile_command.parsed(facts["command"].split()[2:])
    point = profile.points(config, profile_command.axes_and_series(arguments))[0]
    step = CaseStep(Case(point.config.replaced(batch=4), point.config.shape))
    step()
    now = footprint(step, step.inputs, False).ops
    row = facts["rows"][0]
    assert {name: row[name] for name in point.axes} == point.axes
    assert not moved(row["ops"], now), f"{facts['file']} is older than the code: {row['ops']} -> {now} operators"
