"""Suite `freed-memory`: deep steps with freed memory kept by the process, and given back."""

from __future__ import annotations

from dataclasses import dataclass

from eblvm.bench.measurements import freed_memory
from eblvm.bench.suites import Record, Suite, round_count
from eblvm.engine import tables


@dataclass(frozen=True)
class FreedMemory(Suite):
    kind = "freed-memory"
    group = "step"
    help = "deep steps with freed memory kept by the process, and given back"

    rounds: int = round_count(5)

    def run(self) -> Record:
        return freed_memory.run(self.rounds)

    def format_table(self, result: Record) -> str:
        return tables.text(*freed_memory.table(result))
