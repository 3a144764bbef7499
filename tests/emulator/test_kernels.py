"""Every Triton kernel on the emulator against its reference, without a problem; and faults planted in them are found.

The driver of Triton is replaced, so the cases run in a process of their own; all of them with `make kernels`.
"""

import json
import os
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("triton")

from tests.emulator.controls import CONTROLS
from tests.emulator.kernels import BOUNDED, cases

ROOT = Path(__file__).resolve().parents[2]
EVERY = os.environ.get("EBLVM_ALL_KERNELS") == "1"

pytestmark = pytest.mark.timeout(3 * 3600 if EVERY else 600)


@cache
def results() -> dict[str, Any]:
    path = ROOT / "build" / "emulator.json"
    path.parent.mkdir(exist_ok=True)
    command = [sys.executable, "-m", "tests.emulator", "--controls", "--json", str(path)]
    done = subprocess.run([*command, *([] if EVERY else ["--bounded"])], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(path.read_text())


@pytest.mark.parametrize("name", list(cases()) if EVERY else BOUNDED)
def test_case(name: str) -> None:
    """Fails on a wrong value, a race, a read of what nobody wrote, an access out of bounds or misaligned."""
    assert results()[name]["problems"] == []


@pytest.mark.parametrize("name", CONTROLS)
def test_a_planted_fault_is_found(name: str) -> None:
    problems = results()[f"control: {name}"]["problems"]
    assert any(CONTROLS[name].found in problem for problem in problems), problems


@pytest.mark.parametrize("name", CONTROLS)
def test_without_the_fault_there_is_no_problem(name: str) -> None:
    assert results()[CONTROLS[name].case]["problems"] == []
