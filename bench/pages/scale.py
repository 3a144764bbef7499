"""The figures of docs/scale.md: the plan of CelebA at 64x64."""

from pathlib import Path

from eblvm.bench.pages.templates import Notes
from eblvm.bench.tools import records
from eblvm.bench.tools.records import Record
from eblvm.engine import tables

SCHEMA = "eblvm-plan/1"
COLUMNS = {
    "state_mib": ("state MiB", 0),
    "saved_mib": ("saved MiB", 0),
    "peak_mib": ("peak MiB", 0),
    "total_mib": ("total MiB", 0),
    "tflop": ("TFLOP", 2),
    "sent_mib": ("sent MiB", 0),
}


def figures(record: Record, notes: Notes) -> dict[str, str]:
    header = ["N", "checkpoint", "precision", *(title for title, _ in COLUMNS.values())]
    rows = [
        [row["N"], row["checkpoint"], row["precision"], *(f"{row[n]:.{digits}f}" for n, (_, digits) in COLUMNS.items())]
        for row in record["rows"]
    ]
    return {"table": tables.markdown(header, rows)}


FIGURES = {SCHEMA: figures}


def pictures(folder: Path) -> dict[str, Record]:
    """Drawn by `eblvm plan --plot`."""
    return {f"{record['name']}.png": record for record in records.newest(folder, "plan-*", SCHEMA)}
