"""Suite `vages`: VaGES with any number of samples at the price of MDSM, and on a GRBM."""

from __future__ import annotations

from typing import Any, ClassVar

from eblvm.bench.measurements import vages
from eblvm.bench.suites import Suite, device_name, round_count


class Vages(Suite):
    kind = "vages"
    group = "speed"
    help = "VaGES with any number of samples at the price of MDSM, and on a GRBM"
    contested = True
    standard = True
    measurement: ClassVar[Any] = vages

    rounds: int = round_count(5)
    device: str = device_name()
