"""stats.jsonl, read: what a run has logged so far."""

import json
import sys
from pathlib import Path
from typing import Any

MEASURED = ("seconds", "samples_per_second", "memory_mib")  # columns that the clock decides, not the seed

NAMES = {
    "loss": "training loss",
    "validation": "validation loss",
    "lower": "lower-level loss (q against p)",
    "gradient_norm": "gradient norm of theta",
    "lr": "learning rate",
    "samples_per_second": "samples per second",
    "memory_mib": "peak memory (MiB)",
    "seconds": "wall time (s)",
    "langevin": "Langevin gradient norm",
    "loss_scale": "loss scale (fp16)",
}


def name_of(series: str) -> str:
    """The name of a logged quantity as people know it, followed by the replicas' label."""
    name, _, label = series.partition(" ")
    return f"{NAMES.get(name, name.replace('_', ' '))}{', ' + label if label else ''}"


def reproducible(path: Path) -> list[dict[str, Any]]:
    """The rows without what the clock decides: the same for every run of a configuration, however often interrupted."""
    return [{name: value for name, value in row.items() if name not in MEASURED} for row in read_rows(path)]


def read_rows(path: Path) -> list[dict[str, Any]]:
    """The rows of a stats.jsonl, without the line that a run is writing, or was when it was killed.

    Other lines that are no rows (the zeros that a power cut leaves, half a line) are passed over with a warning.
    """
    *lines, _ = path.read_bytes().split(b"\n")
    rows = [row for line in lines if (row := _row(line)) is not None]
    if len(rows) < len(lines):
        print(f"warning: {path}: {len(lines) - len(rows)} damaged lines are passed over", file=sys.stderr)
    return rows


def _row(line: bytes) -> dict[str, Any] | None:
    """A line of the log; None if it is none. Zeros of a power cut may precede the one written next."""
    try:
        row = json.loads(line.strip(b"\0"))
    except (ValueError, RecursionError):
        return None
    return row if isinstance(row, dict) and type(row.get("step")) is int else None
