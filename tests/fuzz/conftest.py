"""The seed and the length of the search stand at the head of every report."""

from .properties import EXAMPLES, SEED


def pytest_report_header() -> str:
    return f"fuzz: {EXAMPLES} examples a property, seed {SEED} (set by EBLVM_FUZZ and EBLVM_FUZZ_SEED)"
