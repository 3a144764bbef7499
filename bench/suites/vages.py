"""Suite `vages`: VaGES with any number of samples at the price of MDSM, and on a GRBM."""

from __future__ import annotations

from dataclasses import dataclass

from eblvm.bench.measurements import vages
from eblvm.bench.suites import Record, Suite, device_name, round_count
from eblvm.bench.tools import device as devices


@dataclass(frozen=True)
class Vages(Suite):
    kind = "vages"
    group = "speed"
    help = "VaGES with any number of samples at the price of MDSM, and on a GRBM"
    contested = True
    standard = True

    rounds: int = round_count(5)
    device: str = device_name()

    def run(self) -> Record:
        return vages.run(self.rounds, device=devices.chosen(self.device))

    def format_table(self, result: Record) -> str:
        return vages.format_table(result)
