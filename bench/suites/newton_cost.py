"""Suite `newton-cost`: the time of a step by the Newton response."""

from __future__ import annotations

from typing import Any, ClassVar

from eblvm.bench.measurements import newton_cost
from eblvm.bench.suites import Suite, round_count
from eblvm.engine.options import option

NETWORKS = ("lean", "published", "freyface")


class NewtonCost(Suite):
    kind = "newton-cost"
    group = "newton"
    help = "the time of a step by the Newton response, on one network"
    measurement: ClassVar[Any] = newton_cost

    network: str = option("lean", "of a deep model: lean, published; freyface: a GRBM", choices=NETWORKS)
    rounds: int = round_count(9)
