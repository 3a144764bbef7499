"""Suite `targets`: the ratios that CPU steps must reach, measured twice."""

from __future__ import annotations

from typing import Any, ClassVar

from eblvm.bench.measurements import targets
from eblvm.bench.suites import Suite, round_count


class Targets(Suite):
    kind = "targets"
    group = "step"
    help = "the ratios that CPU steps must reach, measured twice"
    measurement: ClassVar[Any] = targets

    rounds: int = round_count(21)
