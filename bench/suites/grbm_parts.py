"""Suite `grbm-parts`: the parts of a GRBM's step, each timed alone."""

from __future__ import annotations

from dataclasses import dataclass

from eblvm.bench.measurements import grbm_parts
from eblvm.bench.suites import Record, Suite, round_count
from eblvm.engine import tables


@dataclass(frozen=True)
class GrbmParts(Suite):
    kind = "grbm-parts"
    group = "step"
    help = "the parts of a GRBM's step, each timed alone"

    rounds: int = round_count(21)

    def run(self) -> Record:
        return grbm_parts.run(self.rounds)

    def format_table(self, result: Record) -> str:
        return tables.text(*grbm_parts.table(result))
