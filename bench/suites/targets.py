"""Suite `targets`: the ratios that CPU steps must reach, measured twice."""

from __future__ import annotations

from dataclasses import dataclass

from eblvm.bench.measurements import targets
from eblvm.bench.suites import Record, Suite, round_count
from eblvm.engine import tables


@dataclass(frozen=True)
class Targets(Suite):
    kind = "targets"
    group = "step"
    help = "the ratios that CPU steps must reach, measured twice"

    rounds: int = round_count(21)

    def run(self) -> Record:
        return targets.run(self.rounds)

    def format_table(self, result: Record) -> str:
        return tables.text(*targets.table(result))
