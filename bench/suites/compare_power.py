"""Suite `compare-power`: how often `eblvm bench compare` reports a planted slow-down."""

from __future__ import annotations

from typing import Any, ClassVar

from eblvm.bench.measurements import compare_power
from eblvm.bench.suites import Suite
from eblvm.engine.options import option


class ComparePower(Suite):
    kind = "compare-power"
    group = "bench"
    help = "how often 'eblvm bench compare' reports a planted slow-down"
    measurement: ClassVar[Any] = compare_power

    comparisons: int = option(10, "comparisons with a slow-down, and as many without", low=1)
    minutes: float = option(1.5, "of one comparison", above=0)
    total: float = option(60.0, "minutes after which no comparison starts", above=0)
    slow_down: float = option(0.05, "how much slower the planted step is, as a fraction", above=0)
    only: str = option("method=mdsm,unroll=sgd N=5 K=5 fused", "the cases whose name contains one of these texts")
