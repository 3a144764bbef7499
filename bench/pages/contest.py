"""The figures of docs/contest.md."""

from typing import Any

from eblvm.bench.contest import contest
from eblvm.bench.pages.performance import origin
from eblvm.bench.pages.templates import Notes
from eblvm.bench.tools.records import Record
from eblvm.engine import tables

COLUMNS = {
    "contestant": "contestant",
    "ms": "ms",
    "ratio": "to engine",
    "difference": "check",
    "saved_mib": "saved MiB",
    "peak_mib": "peak MiB",
}


def figures(record: Record, notes: Notes) -> dict[str, str]:
    """A table for every case; the template's note of a case says why a contestant was faster, where one was."""
    load = f"{record['rounds']} rounds; load average of the machine at the end {record['load']}."
    parts = []
    for case in dict.fromkeys(row["case"] for row in record["rows"]):
        rows = [row for row in record["rows"] if row["case"] == case]
        parts.append(f"### {case}\n\n{tables.markdown(list(COLUMNS.values()), [cells(row) for row in rows])}")
        parts += [f"- {row['contestant']}: {row['note']}" for row in rows if row["note"]]
        if case in notes and any(row["ratio"] is not None and row["ratio"] < 1 for row in rows):
            parts.append(f"- Why the engine is slower: {notes[case]}")
    return {
        "origin": origin(record),
        "load": "" if record["load"] is None else load,
        "cases": "\n\n".join(parts),
        "absent": "\n\n".join(f"Absent: {sentence}." for sentence in record["absent"].values()),
    }


def cells(row: dict[str, Any]) -> list[Any]:
    """The cells of a row; the name of one that beats the engine is bold."""
    difference = row["difference"]
    shown = {**row, "difference": None if difference is None else f"{difference:.0e}"}
    if row["ratio"] is not None and row["ratio"] < 1:
        shown["contestant"] = f"**{row['contestant']}**"
    return [shown[name] for name in COLUMNS]


FIGURES = {contest.SCHEMA: figures}
