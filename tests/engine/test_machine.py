"""A system without POSIX's own parts: no file locks, no resource counts, no flags against links, no SIGHUP, no sysconf.

A process that hides them, as Windows lacks them, trains, continues, evaluates and says what it cannot do. And what
glibc's heap does inside and outside of `keep_freed_memory`, each in a process of its own."""

import json
import os
import platform
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from eblvm.engine import durable, machine

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
from eblvm.engine import machine
assert machine.physical_memory() == machine.UNKNOWN_MEMORY
"""


def test_a_run_without_them(tmp_path: Path) -> None:
    out = tmp_path / "run"
    done = subprocess.run([sys.executable, "-c", WITHOUT, str(out)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "cannot be locked (this system has no file locks); let only one process write there" in done.stderr
    rows = [json.loads(line) for line in (out / "stats.jsonl").read_text().splitlines()]
    assert rows[-1]["step"] == 30
    assert rows[-1]["memory_mib"] == 0
    assert "test_log_likelihood" in json.loads((out / "eval.json").read_text())["mean"]


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has none of this")
def test_where_they_are_they_are_used() -> None:
    assert durable.NO_LINKS == os.O_NOFOLLOW | os.O_CLOEXEC
    assert durable.FOLDER == os.O_DIRECTORY
    usual, warnings = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP}, {signal.SIGUSR1, signal.SIGUSR2}
    assert set(machine.ENDINGS) == usual | warnings
    assert machine.peak_memory_mib() > 10
    assert machine.physical_memory() > 2**28


def test_two_files_ask_for_them() -> None:
    only = re.compile(r"\bimport (fcntl|resource)\b|os\.(O_NOFOLLOW|O_DIRECTORY|sysconf)\b|signal\.(SIGHUP|SIGPIPE)\b")
    found = [
        p.name for part in ("engine", "kernels") for p in (ROOT / part).rglob("*.py") if only.search(p.read_text())
    ]
    assert sorted(found) == ["durable.py", "machine.py"]


# Page faults of each of a run's last steps, on a small deep model.
FAULTS = """
import json, sys
from pathlib import Path
from eblvm.engine.optim.optimisation import Optimisation
from eblvm.engine.recipes import recipe
from eblvm.engine.machine import page_faults
from eblvm.engine.optim.optimisation import Optimisation
from eblvm.engine.training import loop
faults, rates = [], Optimisation.rates
def counted(*arguments):
    faults.append(page_faults())
    return rates(*arguments)
Optimisation.rates = counted
config = recipe("digits", method="mdsm", model="deep").replaced(steps=20, validations=0, batch=100)
loop.train(config, Path(sys.argv[1]), say=lambda sentence: None)
print(json.dumps([after - before for before, after in zip(faults[:-1], faults[1:])][-10:]))
"""

# MiB that blocks of 1 and of 40 MiB add to the process: while they are there, when they are freed, and afterwards.
GIVEN_BACK = """
import json
import torch
from eblvm.engine.machine import keep_freed_memory
def resident():
    return int(open("/proc/self/statm").read().split()[1]) * 4096 / 2**20
torch.ones(1)
before = resident()
with keep_freed_memory():
    blocks = [torch.ones(2**18) for _ in range(80)] + [torch.ones(10 * 2**20) for _ in range(3)]
    full = resident()
    blocks.clear()
    inside = resident()
print(json.dumps([full - before, inside - before, resident() - before]))
"""

GLIBC = platform.libc_ver()[0] == "glibc"


def in_a_process(program: str, *arguments: str, **environment: str) -> list[float]:
    untuned = {k: v for k, v in os.environ.items() if not k.startswith("MALLOC_") and k != "GLIBC_TUNABLES"}
    command = [sys.executable, "-c", program, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, env=untuned | environment)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.skipif(not GLIBC, reason="the heap of another C library")
def test_a_step_of_a_run_takes_no_fresh_memory(tmp_path: Path) -> None:
    kept = in_a_process(FAULTS, str(tmp_path / "kept"), OMP_NUM_THREADS="1")
    assert sorted(kept)[len(kept) // 2] < 50
    # An environment that tunes the heap is left alone: with this word of it glibc does as it always does.
    default = in_a_process(FAULTS, str(tmp_path / "default"), OMP_NUM_THREADS="1", MALLOC_ARENA_MAX="8")
    assert sorted(default)[len(default) // 2] > 500


@pytest.mark.skipif(not GLIBC, reason="the heap of another C library")
def test_freed_memory_is_kept_inside_and_given_back_afterwards() -> None:
    full, inside, after = in_a_process(GIVEN_BACK)
    assert full > 195
    assert inside > 195
    assert after < 20
