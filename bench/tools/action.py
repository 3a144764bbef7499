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
    """The figures of the newest record of every name that are better when they fall."""
    newest = {content["name"]: content for content in records}
    found = []
    for name, content in newest.items():
        for row in content["rows"]:
            for figure, value in history.figures_of(row):
                what, unit, smaller = history.FIGURES[figure]
                if smaller and history.name_of(row):
                    extra = f"{content['date']} {content['commit']}, {history.machine_of(content)}"
                    label = f"{name}: {history.name_of(row)}: {what}"
                    found.append({"name": label, "unit": unit, "value": value, "extra": extra})
    return found


def of_benchmarks(benchmarks: Iterable[Any]) -> list[Entry]:
    """The medians of pytest-benchmark's results, `benchmarks` of its session, in ms; the range is the quartiles'."""
    found = []
    for benchmark in benchmarks:
        if not (seconds := benchmark.stats.data):
            continue
        spread = statistics.quantiles(seconds, n=4)[::2] if len(seconds) > 1 else seconds * 2
        found.append(
            {
                "name": benchmark.name,
                "unit": "ms",
                "value": 1e3 * statistics.median(seconds),
                "range": f"{1e3 * spread[0]:.4g} .. {1e3 * spread[1]:.4g}",
                "extra": f"{len(seconds)} rounds of CPU time, one thread",
            }
        )
    return found


def write(entries: list[Entry], path: Path) -> int:
    """How many were written. A name that stands for two figures would mix their histories."""
    unique = {entry["name"]: entry for entry in entries}
    try:
        path.write_text(json.dumps(list(unique.values()), indent=1) + "\n")
    except OSError as error:
        raise UserError(
            f"cannot write {path} ({error.strerror}); give --action a file in a folder that exists"
        ) from None
    return len(unique)
