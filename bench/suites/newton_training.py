"""Suite `newton-training`: what finished runs reach by each way to their gradient."""

from __future__ import annotations

from typing import Any, ClassVar

from eblvm.bench.measurements import newton_training
from eblvm.bench.suites import Suite, run_folders
from eblvm.engine.options import option


class NewtonTraining(Suite):
    kind = "newton-training"
    group = "newton"
    help = "figures of finished runs by each way to their gradient"
    measurement: ClassVar[Any] = newton_training

    name: str = option("", "the name of the record: newton-training-NAME")
    runs: tuple[str, ...] = run_folders("folders of finished runs")
