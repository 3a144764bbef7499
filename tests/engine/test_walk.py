"""The walk that CONTRIBUTING shows: what one command enters, and gates on how much that is.

`python -m tests.engine.test_walk` writes it there again.
"""

import re
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pytest

from eblvm.kernels.runtime.dispatch import NATIVE_LIBRARY

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "CONTRIBUTING.md"
BLOCK = re.compile(r"(<!-- the walk -->\n```\n)(.*?)(```\n)", re.DOTALL)
COMMAND = "train mnist --small --method bimdsm --steps 1 --validations 0"
MOST_FILES, MOST_VISITS = 48, 155


def walk() -> str:
    """Return the output of walk.py for COMMAND, in a process of its own: what others imported would hide calls."""
    random, parts = np.random.default_rng(0), {"train": 7000, "test": 40}
    arrays = {f"x_{k}": random.integers(0, 256, (n, 28, 28), dtype=np.uint8) for k, n in parts.items()}
    labels = {f"y_{k}": random.integers(0, 10, n, dtype=np.uint8) for k, n in parts.items()}
    with tempfile.TemporaryDirectory() as folder:
        np.savez(f"{folder}/mnist.npz", **arrays, **labels)
        places = ["--data", f"{folder}/mnist.npz", "--out", f"{folder}/run"]
        command = [sys.executable, str(Path(__file__).with_name("walk.py")), "--list", *COMMAND.split(), *places]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    # The command's own lines come first.
    return "".join(
        f"{line}\n" for line in done.stdout.splitlines() if re.match(r"(engine|kernels|bench)/|\d+ func", line)
    )


@pytest.fixture(scope="module")
def output() -> str:
    return walk()


def test_the_walk_is_short(output: str) -> None:
    found = re.search(r"(\d+) functions, (\d+) files, (\d+) returns", output)
    assert found is not None
    _, files, returns = map(int, found.groups())
    assert files <= MOST_FILES
    assert files + returns <= MOST_VISITS
    assert "runs/checkpoint.py: save" in output


@pytest.mark.skipif(NATIVE_LIBRARY is None, reason="the page shows the walk with the native kernels")
def test_contributing_shows_it(output: str) -> None:
    shown = BLOCK.search(PAGE.read_text())
    assert shown is not None
    assert shown.group(2) == output, "python -m tests.engine.test_walk"


if __name__ == "__main__":
    page, text = PAGE.read_text(), walk()
    PAGE.write_text(BLOCK.sub(lambda block: block.group(1) + text + block.group(3), page))
