"""Suite `results`: evaluated runs collected into a record, for docs/results.md."""

from __future__ import annotations

from typing import Any, ClassVar

from eblvm.bench.measurements import results
from eblvm.bench.suites import Suite, run_folders
from eblvm.engine.options import option


class Results(Suite):
    kind = "results"
    group = "runs"
    help = "figures of evaluated runs (eval.json), collected into a record"
    measurement: ClassVar[Any] = results

    name: str = option("", "the name of the record: results-NAME")
    runs: tuple[str, ...] = run_folders("folders of evaluated runs")
