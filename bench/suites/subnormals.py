"""Suite `subnormals`: a late step of a run with subnormal numbers, and with zeros in their place."""

from __future__ import annotations

from typing import Any, ClassVar

from eblvm.bench.measurements import subnormals
from eblvm.bench.suites import Suite, round_count
from eblvm.engine.options import option


class Subnormals(Suite):
    kind = "subnormals"
    group = "step"
    help = "a late step of a run with subnormal numbers, and with zeros in their place"
    measurement: ClassVar[Any] = subnormals

    run_folder: str = option("", "the folder of a finished run")
    rounds: int = round_count(9)
