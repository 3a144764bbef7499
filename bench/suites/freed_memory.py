"""Suite `freed-memory`: deep steps with freed memory kept by the process, and given back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from eblvm.bench.measurements import freed_memory
from eblvm.bench.suites import Suite, round_count


@dataclass(frozen=True)
class FreedMemory(Suite):
    kind = "freed-memory"
    group = "step"
    help = "deep steps with freed memory kept by the process, and given back"
    measurement: ClassVar[Any] = freed_memory

    rounds: int = round_count(5)
