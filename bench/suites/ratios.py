"""Options and table of the suites `grbm`, `toy` and `kernels`: the engine's step over a baseline's."""

from __future__ import annotations

from dataclasses import dataclass

from eblvm.bench.measurements import ratios
from eblvm.bench.suites import Record, Suite, device_name, round_count
from eblvm.bench.tools import device as devices
from eblvm.engine.options import option


@dataclass(frozen=True)
class Ratios(Suite):
    """Ratios after the correctness gate, with memory and the floor from the same set-up."""

    group = "speed"
    contested = True
    standard = True

    rounds: int = round_count(15)
    device: str = device_name()
    compile: bool = option(False, "compile the engine's step (minutes; no memory figures)")

    def run(self) -> Record:
        return ratios.run(self.kind, self.rounds, devices.chosen(self.device), self.compile)

    def format_table(self, result: Record) -> str:
        return ratios.format_table(result)
