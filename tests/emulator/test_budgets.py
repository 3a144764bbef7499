"""The recorded costs of the kernels: within their bounds, and those of today's kernels."""

import json
import os
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("triton")

from tests.emulator import record
from tests.emulator.budgets import CHEAP, FEW_PROGRAMS, MOST_SECTORS, MULTIPROCESSORS, budgeted

ROOT = Path(__file__).resolve().parents[2]
EVERY = os.environ.get("EBLVM_ALL_KERNELS") == "1"
COUNTED = ("programs", "registers", "spill_bytes", "sectors", "instructions", "issue_clocks")
ROWS = record.read()

pytestmark = pytest.mark.timeout(3 * 3600 if EVERY else 600)


def label(row: dict[str, Any]) -> str:
    return f"{row['case']}, {row['kernel']}"


@cache
def counted() -> list[dict[str, Any]]:
    path = ROOT / "build" / "emulator-budgets.json"
    path.parent.mkdir(exist_ok=True)
    command = [sys.executable, "-m", "tests.emulator", "--budgets", "--json", str(path)]
    done = subprocess.run([*command, *([] if EVERY else ["--bounded"])], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(path.read_text())


def test_every_case_is_recorded() -> None:
    assert list(dict.fromkeys(row["case"] for row in ROWS)) == list(budgeted())


@pytest.mark.parametrize("row", ROWS, ids=label)
def test_values_and_memory(row: dict[str, Any]) -> None:
    assert row["error"] <= budgeted()[row["case"]].allowed
    assert row["problems"] == 0


@pytest.mark.parametrize("row", ROWS, ids=label)
def test_sectors(row: dict[str, Any]) -> None:
    assert row["sectors"] <= MOST_SECTORS


def test_programs() -> None:
    """Check that every launch has a program for every multiprocessor, but for those listed with a reason."""
    few = {(row["case"].split(":")[0], row["kernel"]) for row in ROWS if row["programs"] < MULTIPROCESSORS}
    assert few == set(FEW_PROGRAMS)


@pytest.mark.parametrize("row", [row for row in ROWS if EVERY or row["case"].startswith(CHEAP)], ids=label)
def test_costs_are_those_recorded(row: dict[str, Any]) -> None:
    """Run 'python -m tests.emulator --update' if a change is meant."""
    (now,) = (one for one in counted() if label(one) == label(row))
    assert {name: now[name] for name in COUNTED} == {name: row[name] for name in COUNTED}
