"""Suite `traffic`: launches and memory traffic of the Triton kernels, counted in triton's interpreter."""

from __future__ import annotations

from typing import Any, ClassVar

from eblvm.bench.measurements import traffic
from eblvm.bench.suites import Suite


class Traffic(Suite):
    kind = "traffic"
    group = "step"
    help = "launches and memory traffic of the Triton kernels, counted without a GPU"
    measurement: ClassVar[Any] = traffic
