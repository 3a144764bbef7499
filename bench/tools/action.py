"""Figures as github-action-benchmark reads them with `tool: customSmallerIsBetter`: a list of name, unit and value.

https://github.com/benchmark-action/github-action-benchmark keeps them over commits and comments on what grew.
"""

import json
import statistics
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from eblvm.bench.tools import history
from eblvm.engine.errors import UserError

Entry = dict[str, Any]


def of_records(records: list[dict[str, Any]]) -> list[Entry]:
    """The figures of the newest record of every name for which less is better."""
    newest = {content["name"]: content for content in records}
    entries = []
    for name, content in newest.items():
        for row in content["rows"]:
            for figure, value in history.figures_of(row):
                what, unit, smaller = history.FIGURES[figure]
                if smaller and history.name_of(row):
                    extra = f"{content['date']} {content['commit']}, {history.machine_of(content)}"
                    label = f"{name}: {history.name_of(row)}: {what}"
                    entries.append({"name": label, "unit": unit, "value": value, "extra": extra})
    return entries


def of_benchmarks(benchmarks: Iterable[Any]) -> list[Entry]:
    """The medians in ms of pytest-benchmark's results, `benchmarks` of its session; the range is the quartiles."""
    entries = []
    for benchmark in benchmarks:
        if not (seconds := benchmark.stats.data):
            continue
        spread = statistics.quantiles(seconds, n=4)[::2] if len(seconds) > 1 else seconds * 2
        entries.append(
            {
                "name": benchmark.name,
                "unit": "ms",
                "value": 1e3 * statistics.median(seconds),
                "range": f"{1e3 * spread[0]:.4g} .. {1e3 * spread[1]:.4g}",
                "extra": f"{len(seconds)} rounds of CPU time, one thread",
            }
        )
    return entries


def write(entries: list[Entry], path: Path) -> int:
    """Write the entries; return how many. Of two entries with one name only the last is written: their histories would
    mix."""
    unique = {entry["name"]: entry for entry in entries}
    try:
        path.write_text(json.dumps(list(unique.values()), indent=1) + "\n")
    except OSError as error:
        raise UserError(
            f"cannot write {path} ({error.strerror}); give --action a file in a folder that exists"
        ) from None
    return len(unique)
