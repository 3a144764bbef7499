"""Suite `results`: evaluated runs collected into a record, for docs/results.md."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from eblvm.bench.measurements import results
from eblvm.bench.suites import Record, Suite, run_folders
from eblvm.engine import tables
from eblvm.engine.options import option


@dataclass(frozen=True)
class Results(Suite):
    kind = "results"
    group = "runs"
    help = "figures of evaluated runs (eval.json), collected into a record"

    name: str = option("", "the name of the record: results-NAME")
    runs: tuple[str, ...] = run_folders("folders of evaluated runs")

    def run(self) -> Record:
        return results.run(self.name, [Path(folder) for folder in self.runs])

    def format_table(self, result: Record) -> str:
        return tables.text(*results.table(result))
