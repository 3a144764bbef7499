"""Every step on a fake GPU: no mixed devices, no native op, no waiting, no copy; launches as recorded.

The fake device is set up before torch is imported, so the cases run in a process of their own, all in one.
"""

import importlib.util
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.rehearsal import record
from tests.rehearsal.captures import ALWAYS
from tests.rehearsal.cases import cases

ROOT = Path(__file__).resolve().parents[2]
NAMES = list(cases())
# Bounds on the launches of one step at the published sizes; bench/records/launches.json has the real numbers.
BARS = {"freyface bidsm N=5 K=5": 90, "cifar10 mdsm": 300, "cifar10 bimdsm N=0": 420, "cifar10 mdsm bf16": 300}

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="the fake device is compiled with g++")


@pytest.fixture(scope="module")
def rehearsal(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    path = tmp_path_factory.mktemp("rehearsal") / "cases.json"
    command = [sys.executable, "-m", "tests.rehearsal", "--json", str(path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(path.read_text())


PARTS = (
    "gibbs_samples",
    "langevin_samples",
    "annealed_importance",
    "bound_of_the_likelihood",
    "validation",
    "critic",
    "bench_of_a_grbm",
    "bench_of_a_network",
    "bench_of_kernels",
    "kernels_on_the_second_gpu",
)


@pytest.mark.parametrize("name", PARTS)
def test_part(name: str, rehearsal: dict[str, Any]) -> None:
    """Check sampling and evaluation: nothing on another device."""
    assert rehearsal[f"part: {name}"]["faults"] == []


def test_self_test(rehearsal: dict[str, Any]) -> None:
    """Check that every check of `eblvm doctor --gpu` reaches its figure."""
    assert rehearsal["doctor --gpu"]["faults"] == []


@pytest.mark.parametrize("name", ["grbm", "network", "pictures"])
def test_run(name: str, rehearsal: dict[str, Any]) -> None:
    """Check a whole run as the second of two processes: its own GPU everywhere, in torch, NCCL and DALI."""
    if name == "pictures" and importlib.util.find_spec("nvidia.dali") is None:
        pytest.skip("DALI is not installed")
    assert rehearsal[f"run: {name}"]["faults"] == []


@pytest.mark.parametrize("name", ["buckets", "differentiable"])
def test_mean(name: str, rehearsal: dict[str, Any]) -> None:
    """Check the means over processes: NCCL divides, and a tensor is copied once."""
    assert rehearsal[f"mean: {name}"]["faults"] == []


def test_apex(rehearsal: dict[str, Any]) -> None:
    """Check that the host reads none of apex's numbers."""
    assert rehearsal["optimizer: apex"]["faults"] == []


@pytest.mark.parametrize("name", NAMES)
def test_step(name: str, rehearsal: dict[str, Any]) -> None:
    """Fails on a device mix, a native CPU op, a wait, a copy, a kernel's wrapped or gappy argument, a large grid."""
    assert rehearsal[name]["faults"] == []


@pytest.mark.parametrize("name", [f"{name}, {count} process" for name in ALWAYS for count in ALWAYS[name]])
def test_capture(name: str, rehearsal: dict[str, Any]) -> None:
    """Fails unless the whole step is one graph, in which nothing waits, copies from the host, is compiled, runs on
    another stream or a collective of the host, or lends and borrows memory that does not stay."""
    plural = "" if name.endswith("1 process") else "es"
    assert rehearsal[f"capture: {name}{plural}"]["faults"] == []


def test_every_fault_in_a_capture_is_found(rehearsal: dict[str, Any]) -> None:
    """Check that it can fail: capture_faults.py plants one of each in the captured step."""
    faults = {name: facts["faults"] for name, facts in rehearsal.items() if name.startswith("fault in a capture: ")}
    assert len(faults) == 12
    assert [name for name, detected in faults.items() if not detected] == []


def test_every_fault_is_found(rehearsal: dict[str, Any]) -> None:
    """Check that the rehearsal can fail: faults.py makes one of each fault."""
    faults = {name: facts["faults"] for name, facts in rehearsal.items() if name.startswith("fault: ")}
    assert len(faults) == 14
    assert [name for name, detected in faults.items() if not detected] == []


def test_launches_are_as_recorded(rehearsal: dict[str, Any]) -> None:
    """Compare with the record; 'python -m tests.rehearsal --update' if more launches are intended."""
    recorded = record.read()
    assert list(recorded) == NAMES
    allowed = {name: number * (1 + record.ALLOWED) for name, number in recorded.items()}
    grown = {name: (recorded[name], rehearsal[name]["launches"]) for name in NAMES}
    assert {n: pair for n, pair in grown.items() if pair[1] > allowed[n]} == {}


@pytest.mark.parametrize("name", BARS)
def test_launches_stay_below_the_bar(name: str, rehearsal: dict[str, Any]) -> None:
    assert rehearsal[name]["launches"] <= BARS[name]
