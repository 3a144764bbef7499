"""Suite `deep`: BiMDSM at the price of MDSM, at the width of the published CIFAR-10 model."""

from __future__ import annotations

from dataclasses import dataclass

from eblvm.bench.measurements import deep
from eblvm.bench.suites import Record, Suite, device_name, round_count
from eblvm.bench.tools import device as devices


@dataclass(frozen=True)
class Deep(Suite):
    kind = "deep"
    group = "speed"
    help = "BiMDSM at the price of MDSM, at the width of the published CIFAR-10 model"
    contested = True
    standard = True

    rounds: int = round_count(5)
    device: str = device_name()

    def run(self) -> Record:
        return deep.run(self.rounds, device=devices.chosen(self.device))

    def format_table(self, result: Record) -> str:
        return deep.format_table(result)
