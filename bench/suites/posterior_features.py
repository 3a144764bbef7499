"""Suite `posterior-features`: the worth of posterior means to a linear SVM, over training."""

from __future__ import annotations

from typing import Any, ClassVar

from eblvm.bench.measurements import posterior_features
from eblvm.bench.suites import Suite, run_folders


class PosteriorFeatures(Suite):
    kind = "posterior-features"
    group = "runs"
    help = "accuracy of a linear SVM on posterior means, over training"
    measurement: ClassVar[Any] = posterior_features

    runs: tuple[str, ...] = run_folders("folders of runs that kept their checkpoints (--keep)")
