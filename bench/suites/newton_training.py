"""Suite `newton-training`: what finished runs reach by each way to their gradient."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from eblvm.bench.measurements import newton_training
from eblvm.bench.suites import Record, Suite, run_folders
from eblvm.engine.options import option


@dataclass(frozen=True)
class NewtonTraining(Suite):
    kind = "newton-training"
    group = "newton"
    help = "figures of finished runs by each way to their gradient"

    name: str = option("", "the name of the record: newton-training-NAME")
    runs: tuple[str, ...] = run_folders("folders of finished runs")

    def run(self) -> Record:
        return newton_training.run(self.name, [Path(folder) for folder in self.runs])

    def format_table(self, result: Record) -> str:
        return newton_training.format_table(result["rows"])
