"""Suite `newton-study`: bias and spread of gradient estimates where the truth is known."""

from __future__ import annotations

from typing import Any, ClassVar

from eblvm.bench.measurements import newton_study
from eblvm.bench.suites import Suite
from eblvm.engine.options import option


class NewtonStudy(Suite):
    kind = "newton-study"
    group = "newton"
    help = "bias and spread of gradient estimates where the truth is known"
    measurement: ClassVar[Any] = newton_study

    seeds: int = option(3, "models drawn", low=1)
