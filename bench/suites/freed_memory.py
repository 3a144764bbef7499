"""Suite `freed-memory`: deep steps with freed memory kept by the process, and given back."""

from __future__ import annotations

from typing import Any, ClassVar

from eblvm.bench.measurements import freed_memory
from eblvm.bench.suites import Suite, round_count


class FreedMemory(Suite):
    kind = "freed-memory"
    group = "step"
    help = "deep steps with freed memory kept by the process, and given back"
    measurement: ClassVar[Any] = freed_memory

    rounds: int = round_count(5)
