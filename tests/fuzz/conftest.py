"""Reports of the fuzz tests: they begin with the seed and the length of the search, and end with what was tried.

EBLVM_FUZZ_RECORD=FILE writes the end to a record.
"""

import os
from pathlib import Path
from typing import Any

import pytest

from eblvm.bench.tools import record

from .properties import EXAMPLES, SEED, TALLY

SCHEMA = "eblvm-fuzz/1"


def pytest_report_header() -> str:
    return f"fuzz: {EXAMPLES} examples per property, seed {SEED} (set by EBLVM_FUZZ and EBLVM_FUZZ_SEED)"


def pytest_terminal_summary(terminalreporter: Any, exitstatus: int, config: pytest.Config) -> None:
    if not TALLY:
        return
    outcomes = {how: len(terminalreporter.stats.get(how, ())) for how in ("passed", "failed", "error", "skipped")}
    terminalreporter.write_line("fuzz: " + ", ".join(f"{count:,} {what}" for what, count in sorted(TALLY.items())))
    if path := os.environ.get("EBLVM_FUZZ_RECORD"):
        command = f"EBLVM_FUZZ={EXAMPLES} EBLVM_FUZZ_SEED={SEED} pytest {' '.join(config.invocation_params.args)}"
        facts = {"examples": EXAMPLES, "seed": SEED, "tried": dict(TALLY), "tests": outcomes, "exit": int(exitstatus)}
        record.write(record.make(SCHEMA, Path(path).stem, command, "cpu", facts), Path(path))
