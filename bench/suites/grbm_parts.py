"""Suite `grbm-parts`: the parts of a GRBM's step, each timed alone."""

from __future__ import annotations

from typing import Any, ClassVar

from eblvm.bench.measurements import grbm_parts
from eblvm.bench.suites import Suite, round_count


class GrbmParts(Suite):
    kind = "grbm-parts"
    group = "step"
    help = "the parts of a GRBM's step, each timed alone"
    measurement: ClassVar[Any] = grbm_parts

    rounds: int = round_count(21)
