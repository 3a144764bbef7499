"""Suite `growth`: how time, memory and FLOPs of a step grow, one axis at a time, next to theory."""

from __future__ import annotations

from typing import Any, ClassVar

from eblvm.bench.measurements import growth
from eblvm.bench.suites import Suite, round_count


class Growth(Suite):
    kind = "growth"
    group = "step"
    help = "growth of time, memory and FLOPs over every axis, next to theory"
    standard = True
    measurement: ClassVar[Any] = growth

    rounds: int = round_count(21)
