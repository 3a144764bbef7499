"""The record of the budgets: bench/records/emulator.jsonl, which docs/performance.md shows."""

from typing import Any

from eblvm.bench.pages.emulator import SCHEMA
from eblvm.bench.tools import record, records
from tests.emulator.budgets import Row

PATH = records.RECORDS / "emulator.jsonl"
COMMAND = "python -m tests.emulator --update"


def write(rows: list[Row]) -> None:
    made = record.make(SCHEMA, "emulator", COMMAND, "cpu", {"rows": [row._asdict() for row in rows]})
    record.write(made, PATH)


def read() -> list[dict[str, Any]]:
    return records.read(PATH, SCHEMA)["rows"]
