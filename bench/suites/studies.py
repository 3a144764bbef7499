"""Suite `studies`: studies of the VaGES paper, as a record and a picture."""

from __future__ import annotations

from typing import Any, ClassVar

from eblvm.bench.measurements import studies
from eblvm.bench.suites import Suite, run_folders
from eblvm.engine.options import option

STUDIES = ("theory", "fisher", "checkerboard")


class Studies(Suite):
    kind = "studies"
    group = "runs"
    help = "studies of the VaGES paper, as a record and a picture"
    measurement: ClassVar[Any] = studies

    study: str = option(
        "fisher",
        "theory (reads --data), fisher or checkerboard (reads --runs)",
        choices=STUDIES,
    )
    data: str | None = option(None, "theory: the Frey faces")
    runs: tuple[str, ...] = run_folders("checkerboard: folders of runs that kept their checkpoints")
