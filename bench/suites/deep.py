"""Suite `deep`: BiMDSM at the price of MDSM, at the width of the published CIFAR-10 model."""

from __future__ import annotations

from typing import Any, ClassVar

from eblvm.bench.measurements import deep
from eblvm.bench.suites import Suite, device_name, round_count


class Deep(Suite):
    kind = "deep"
    group = "speed"
    help = "BiMDSM at the price of MDSM, at the width of the published CIFAR-10 model"
    contested = True
    standard = True
    measurement: ClassVar[Any] = deep

    rounds: int = round_count(5)
    device: str = device_name()
