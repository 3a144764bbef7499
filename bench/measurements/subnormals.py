"""`eblvm bench subnormals`: a late step of a run, with subnormal numbers and with zeros.

The tails of q(h|v) shrink while it learns. Below 1.2e-38 they are subnormal, and a CPU needs many times as long for
each product of them. The same step at the run's beginning has none.
"""

from copy import deepcopy
from pathlib import Path
from typing import Any

import torch

from eblvm.bench.contestants.steps import EngineStep
from eblvm.bench.tools import columns, record
from eblvm.bench.tools.columns import Table
from eblvm.bench.tools.timing import interleaved, median, ratio_by_round
from eblvm.engine.errors import UserError
from eblvm.engine.machine import subnormals_as_zero
from eblvm.engine.methods.base import State, from_tree
from eblvm.engine.runs.saved import SavedRun

SCHEMA = "eblvm-subnormals/1"
COLUMNS = {"case": "state", "ms": "ms", "to_the_first": "to the first"}


class OnData(EngineStep):
    """The step of a run on its own data, from one of its states or from the beginning."""

    def __init__(self, run: SavedRun, state: State | None):
        super().__init__(run.config, run.shape, state)
        train = run.dataset.train[: run.config.optimisation.batch]
        self.v = run.dataset.floats(train)


class Flushed(OnData):
    """The same step with subnormal numbers replaced by zero."""

    def __call__(self) -> None:
        with subnormals_as_zero():
            super().__call__()


def run(run_folder: str | Path, rounds: int) -> dict[str, Any]:
    if not run_folder:
        raise UserError("'eblvm bench subnormals' needs a run; give --run-folder RUN")
    torch.set_num_threads(1)
    trained = SavedRun.open(Path(run_folder))
    step, saved, device = trained.payload["step"], trained.payload["state"], torch.device("cpu")
    names = {
        "step 0": OnData(trained, None),
        f"step {step}": OnData(trained, from_tree(deepcopy(saved), device)),
        f"step {step}, subnormals as zero": Flushed(trained, from_tree(deepcopy(saved), device)),
    }
    (readings,) = interleaved([list(names.values())], rounds, "cpu")
    rows = [
        {"case": name, "ms": median(times), "to_the_first": ratio_by_round(times, readings[0])}
        for name, times in zip(names, readings, strict=True)
    ]
    command = f"eblvm bench subnormals --run-folder RUN --rounds {rounds}"
    facts = {"rounds": rounds, "recipe": trained.config.recipe, "method": trained.config.method.kind, "rows": rows}
    facts |= {name: trained.config.get(name) for name in ("N", "K", "divergence", "noise")}
    return record.make(SCHEMA, "subnormals", command, "cpu", facts)


def table(result: dict[str, Any]) -> Table:
    return columns.table(COLUMNS, result)
