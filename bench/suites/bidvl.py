"""Suite `bidvl`: a step of BiDVL with the published CIFAR-10 nets."""

from __future__ import annotations

from typing import Any, ClassVar

from eblvm.bench.measurements import bidvl
from eblvm.bench.suites import Suite, device_name, round_count


class Bidvl(Suite):
    kind = "bidvl"
    group = "speed"
    help = "a step of BiDVL with the published CIFAR-10 nets"
    contested = True
    standard = True
    measurement: ClassVar[Any] = bidvl

    rounds: int = round_count(5)
    device: str = device_name()
