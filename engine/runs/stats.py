"""Read what a run has logged so far, stats.jsonl, and its evaluation, eval.json."""

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

    Other lines that are no rows (the zeros that a power cut leaves, half a line) are passed over with a warning."""
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


def read_eval(path: Path) -> dict[str, Any] | None:
    """The content of the file; None if there is none. A damaged one is passed over: evaluating again makes it anew."""
    try:
        content = path.read_bytes()
    except OSError:
        return None
    try:
        facts = json.loads(content)
        problem = _problem(facts)
    except (ValueError, RecursionError) as error:
        problem = str(error)
    if problem is None:
        return facts
    print(f"warning: {path} is damaged ({problem}); it is passed over, 'eblvm eval' makes it again", file=sys.stderr)
    return None


def _problem(facts: Any) -> str | None:
    if not isinstance(facts, dict):
        return f"it is a {type(facts).__name__}, expected a table"
    for part, kinds in (("mean", (int, float, str)), ("deviation", (int, float))):
        table = facts.get(part)
        if not isinstance(table, dict) or not all(isinstance(v, kinds) for v in table.values()):
            return f"its {part!r} is no table of figures"
    if facts["mean"].keys() != facts["deviation"].keys():
        return "its means and deviations are of different figures"
    sections = facts.get("sections")
    if not isinstance(sections, dict) or not all(map(_is_section, sections.values())):
        return "its 'sections' are no table of sections"
    return None


def _is_section(section: Any) -> bool:
    return (
        isinstance(section, dict)
        and isinstance(section.get("settings"), dict)
        and isinstance(section.get("seconds"), (int, float))
        and isinstance(rows := section.get("figures"), list)
        and len(rows) > 0
        and all(isinstance(row, dict) and all(isinstance(v, (int, float, str)) for v in row.values()) for row in rows)
    )
