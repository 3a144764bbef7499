"""Suite `subnormals`: a late step of a run with subnormal numbers, and with zeros in their place."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from eblvm.bench.measurements import subnormals
from eblvm.bench.suites import Record, Suite, round_count
from eblvm.engine import tables
from eblvm.engine.errors import UserError
from eblvm.engine.options import option


@dataclass(frozen=True)
class Subnormals(Suite):
    kind = "subnormals"
    group = "step"
    help = "a late step of a run with subnormal numbers, and with zeros in their place"

    run_folder: str = option("", "the folder of a finished run")
    rounds: int = round_count(9)

    def run(self) -> Record:
        if not self.run_folder:
            raise UserError("'eblvm bench subnormals' needs a run; give --run-folder RUN")
        return subnormals.measured(Path(self.run_folder), self.rounds)

    def format_table(self, result: Record) -> str:
        return tables.text(*subnormals.table(result))
