"""Fast start: help, and errors before training, execute no line of torch."""

import resource
import subprocess
import sys

import pytest

LIMIT_SECONDS = 0.4  # of CPU, in a fresh process
CODE = """
import sys
from eblvm.engine.cli import main
code = main(sys.argv[1:])
assert type(sys.modules['torch']).__name__ == '_Lazy', 'torch was executed'
sys.exit(code)
"""


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        ("--help", 0),
        ("--version", 0),
        ("train --help", 0),
        ("train mnist --method vages-mdsm --help", 0),
        ("train nosuch", 2),
        ("train checkerboard --method sm --L 7", 2),
        ("train checkerboard --N many", 2),
        ("train mnist --small --posterior linear", 2),
        ("bench --help", 0),
        ("bench nosuch", 2),
        ("reproduce", 0),
        ("reproduce bism-table1", 0),
        ("reproduce bism-tabel1", 2),
        ("eval nowhere --chains 1", 2),
        ("eval nowhere", 2),
        ("sample nowhere", 2),
        ("sample --help", 0),
        ("sample nowhere --steps many", 2),
        ("plan celeba64 --gpus 0", 2),
        ("nosuch", 2),
    ],
)
def test_help_and_errors_need_no_torch(arguments: str, code: int) -> None:
    command = [sys.executable, "-c", CODE, *arguments.split()]
    subprocess.run(command, capture_output=True)  # fills the caches of compiled files
    used = []
    while len(used) < 10 and min(used, default=LIMIT_SECONDS) >= LIMIT_SECONDS:  # a busy machine only adds time
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        done = subprocess.run(command, capture_output=True, text=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        used.append(after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime)
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr
    assert min(used) < LIMIT_SECONDS


def test_help_shows_what_the_run_reads_and_nothing_else() -> None:
    command = [sys.executable, "-c", CODE, *"train mnist --method vages-mdsm --help".split()]
    text = subprocess.run(command, capture_output=True, text=True).stdout.split("examples:")[0]
    for wanted in (
        "--L ",
        "--C ",
        "--sigma-range",
        "--posterior-width",
        "method options",
        "model options",
        "[1 or more",
    ):
        assert wanted in text
    for absent in ("--N ", "--unroll", "--ratio", "--sweeps", "--kernel-width", "--sigma ", "--directions", "--fused"):
        assert absent not in text
