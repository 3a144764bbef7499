"""Suite `posterior-features`: the worth of posterior means to a linear SVM, over training."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from eblvm.bench.measurements import posterior_features
from eblvm.bench.suites import Record, Suite, run_folders
from eblvm.engine import tables


@dataclass(frozen=True)
class PosteriorFeatures(Suite):
    kind = "posterior-features"
    group = "runs"
    help = "accuracy of a linear SVM on posterior means, over training"

    runs: tuple[str, ...] = run_folders("folders of runs that kept their checkpoints (--keep)")

    def run(self) -> Record:
        return posterior_features.run([Path(folder) for folder in self.runs])

    def format_table(self, result: Record) -> str:
        return tables.text(*posterior_features.table(result))
