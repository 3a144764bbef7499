"""A system without POSIX's own parts: no file locks, no resource counts, no flags against links, no SIGHUP, no sysconf.

A process that hides them, as Windows lacks them, trains, continues, evaluates and says what it cannot do."""

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from eblvm.engine import system

ROOT = Path(__file__).parents[2]
WITHOUT = """
import os, signal, sys
import torch, matplotlib, tensorboard, scipy.stats, sklearn.svm  # these have their own answers
sys.modules["fcntl"] = sys.modules["resource"] = None
for module, names in ((os, ("O_NOFOLLOW", "O_CLOEXEC", "O_DIRECTORY", "sysconf")), (signal, ("SIGHUP", "SIGPIPE"))):
    for name in names:
        delattr(module, name)
torch.set_num_threads(1)
from eblvm.engine.cli import main
out = sys.argv[1]
train = ["train", "checkerboard", "--method", "bidsm", "--N", "1", "--K", "1", "--log-every", "10", "--out", out]
assert main([*train, "--steps", "20"]) == 0
assert main(["train", "--resume", out, "--steps", "30"]) == 0
assert main(["eval", out]) == 0
assert main(["runs", out]) == 0
from eblvm.engine import system
assert system.physical_memory() == system.UNKNOWN_MEMORY
"""


def test_a_run_without_them(tmp_path: Path) -> None:
    out = tmp_path / "run"
    done = subprocess.run([sys.executable, "-c", WITHOUT, str(out)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "cannot be locked (this system has no locks of files); let only one process write there" in done.stderr
    rows = [json.loads(line) for line in (out / "stats.jsonl").read_text().splitlines()]
    assert rows[-1]["step"] == 30
    assert rows[-1]["memory_mib"] == 0
    assert "test_log_likelihood" in json.loads((out / "eval.json").read_text())["mean"]


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has none of this")
def test_where_they_are_they_are_used() -> None:
    assert system.NO_LINKS == os.O_NOFOLLOW | os.O_CLOEXEC
    assert system.FOLDER == os.O_DIRECTORY
    assert set(system.ENDINGS) == {signal.SIGINT, signal.SIGTERM, signal.SIGHUP}
    assert system.peak_memory_mib() > 10
    assert system.physical_memory() > 2**28


def test_no_other_file_asks_for_them() -> None:
    only = re.compile(r"\bimport (fcntl|resource)\b|os\.(O_NOFOLLOW|O_DIRECTORY|sysconf)\b|signal\.(SIGHUP|SIGPIPE)\b")
    found = [
        p.name for part in ("engine", "kernels") for p in (ROOT / part).rglob("*.py") if only.search(p.read_text())
    ]
    assert found == ["system.py"]
