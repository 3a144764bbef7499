"""The walk of CONTRIBUTING is the one a run takes: a trace of every function it enters between the command line and the
checkpoint names the same files, each either on the walk or listed as passed by."""

import json
import re
import subprocess
import sys
from itertools import groupby
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).parents[2]
MOST_FILES, MOST_RETURNS = 25, 35
# In a process of its own: what is cached or imported by other tests would hide calls.
TRACE = """
import inspect, json, sys, threading
from pathlib import Path
import eblvm.engine.cli as cli

root, entered, seen = Path(cli.__file__).parents[1], [], set()
END = ("training/checkpoint.py", "save")

def enter(frame, event, argument):
    code = frame.f_code
    if END in entered:
        return
    if event != "call" or code in seen or not code.co_flags & inspect.CO_OPTIMIZED or "<" in code.co_qualname:
        return  # bodies of modules and classes, and functions inside of functions, which their reader has read
    path = Path(code.co_filename)
    if path.is_relative_to(root) and not importing(frame):
        seen.add(code)
        entered.append((str(path.relative_to(root)), code.co_qualname))

def importing(frame):
    while frame := frame.f_back:
        if frame.f_code.co_name == "<module>" and Path(frame.f_code.co_filename).is_relative_to(root):
            return True
    return False

sys.setprofile(enter)
threading.setprofile(enter)  # a checkpoint is written by a thread
cli.main(sys.argv[1:])
print(json.dumps(entered))
"""


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The files of `eblvm train mnist --small --method bimdsm`, one entry per function in the order of first calls."""
    folder, random = tmp_path_factory.mktemp("walk"), np.random.default_rng(0)
    parts = {"train": 7000, "test": 40}
    arrays = {f"x_{k}": random.integers(0, 256, (n, 28, 28), dtype=np.uint8) for k, n in parts.items()}
    labels = {f"y_{k}": random.integers(0, 10, n, dtype=np.uint8) for k, n in parts.items()}
    np.savez(folder / "mnist.npz", **arrays, **labels)
    command = "train mnist --small --method bimdsm --steps 1 --validations 0".split()
    where = ["--data", str(folder / "mnist.npz"), "--out", str(folder / "run")]
    result = subprocess.run([sys.executable, "-c", TRACE, *command, *where], capture_output=True, text=True, check=True)
    entered = json.loads(result.stdout.splitlines()[-1])
    assert entered[-1] == ["training/checkpoint.py", "save"]
    return [file for file, _ in entered]


def named(title: str) -> list[str]:
    """The files that the drawing or the table under this heading of CONTRIBUTING names."""
    section = (ROOT / "CONTRIBUTING.md").read_text().split(f"## {title}\n")[1].split("\n## ")[0]
    section = section.split("```")[1] if "```" in section else section
    return [name.removeprefix("engine/") for name in re.findall(r"[\w/]+\.py\b", section)]


def test_walk_and_passed_by_are_what_a_run_enters(trace: list[str]) -> None:
    walk, passed_by = named("The walk"), named("Passed by")
    assert len(set(walk)) == len(walk)
    assert not set(walk) & set(passed_by)
    assert set(trace) == {*walk, *passed_by}


def test_walk_is_short(trace: list[str]) -> None:
    walk = named("The walk")
    visits = [file for file, _ in groupby(file for file in trace if file in walk)]
    assert len(set(visits)) <= MOST_FILES
    assert len(visits) - len(set(visits)) <= MOST_RETURNS
