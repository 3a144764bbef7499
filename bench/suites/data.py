"""Suite `data`: pictures per second, and what input costs a training step."""

from __future__ import annotations

from typing import Any, ClassVar

from eblvm.bench.measurements import data
from eblvm.bench.suites import Suite, round_count
from eblvm.engine.options import option


class Data(Suite):
    kind = "data"
    group = "speed"
    help = "pictures per second of decoders and store, and what input costs a step"
    contested = True
    standard = True
    measurement: ClassVar[Any] = data

    rounds: int = round_count(20)
    data: str | None = option(None, "the folder of CelebA's pictures (default: celeba in $EBLVM_DATA)")
