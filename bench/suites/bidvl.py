"""Suite `bidvl`: a step of BiDVL with the published CIFAR-10 nets."""

from __future__ import annotations

from dataclasses import dataclass

from eblvm.bench.measurements import bidvl
from eblvm.bench.suites import Record, Suite, device_name, round_count
from eblvm.bench.tools import device as devices


@dataclass(frozen=True)
class Bidvl(Suite):
    kind = "bidvl"
    group = "speed"
    help = "a step of BiDVL with the published CIFAR-10 nets"
    contested = True
    standard = True

    rounds: int = round_count(5)
    device: str = device_name()

    def run(self) -> Record:
        return bidvl.run(self.rounds, device=devices.chosen(self.device))

    def format_table(self, result: Record) -> str:
        return bidvl.format_table(result)
