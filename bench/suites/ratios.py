"""Options and table of the suites `grbm`, `toy` and `kernels`: the engine's step over a baseline's."""

from __future__ import annotations

from typing import Any, ClassVar

from eblvm.bench.measurements import ratios
from eblvm.bench.suites import Suite, device_name, round_count
from eblvm.engine.options import option


class Ratios(Suite):
    """Ratios after the correctness gate, with memory and the floor from the same set-up."""

    group = "speed"
    contested = True
    standard = True
    measurement: ClassVar[Any] = ratios

    rounds: int = round_count(15)
    device: str = device_name()
    compile: bool = option(False, "compile the engine's step (minutes; no memory figures)")

    def arguments(self) -> dict[str, Any]:
        return {"suite": self.kind, **super().arguments()}
