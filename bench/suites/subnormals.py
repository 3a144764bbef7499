"""`python -m eblvm.bench.suites.subnormals RUN ROUNDS`: a late step of a run, with subnormal numbers and with zeros.

The tails of q(h|v) shrink while it learns. Below 1.2e-38 they are subnormal, and a CPU takes many times as long for
each product of them. The same step at the run's beginning has none.
"""

import sys
from copy import deepcopy
from pathlib import Path
from typing import Any

import torch

from eblvm.bench.contestants.steps import EngineStep
from eblvm.bench.tools import record
from eblvm.bench.tools.timing import interleaved, median, ratio_by_round
from eblvm.engine import tables
from eblvm.engine.device import subnormals_as_zero
from eblvm.engine.methods.types import State
from eblvm.engine.methods.update import state_from
from eblvm.engine.runs.saved import SavedRun

SCHEMA = "eblvm-subnormals/1"
COLUMNS = {"case": "state", "ms": "ms", "to_the_first": "to the first"}


class OnData(EngineStep):
    """The step of a run on its own data, from a state of it or from the beginning."""

    def __init__(self, run: SavedRun, state: State | None):
        super().__init__(run.config, run.shape, state)
        train = run.dataset.train[: run.config.optimisation.batch]
        self.v = run.dataset.floats(train)


class Flushed(OnData):
    """The same with subnormal numbers as zero."""

    def __call__(self) -> None:
        with subnormals_as_zero():
            super().__call__()


def measured(folder: Path, rounds: int) -> dict[str, Any]:
    torch.set_num_threads(1)
    run = SavedRun.open(folder)
    step, saved, device = run.payload["step"], run.payload["state"], torch.device("cpu")
    names = {
        "step 0": OnData(run, None),
        f"step {step}": OnData(run, state_from(deepcopy(saved), device)),
        f"step {step}, subnormals as zero": Flushed(run, state_from(deepcopy(saved), device)),
    }
    (readings,) = interleaved([list(names.values())], rounds, "cpu")
    rows = [
        {"case": name, "ms": median(found), "to_the_first": ratio_by_round(found, readings[0])}
        for name, found in zip(names, readings, strict=True)
    ]
    command = f"python -m eblvm.bench.suites.subnormals RUN {rounds}"
    facts = {"rounds": rounds, "recipe": run.config.recipe, "method": run.config.method.kind, "rows": rows}
    facts |= {name: run.config.get(name) for name in ("N", "K", "divergence", "noise")}
    return record.make(SCHEMA, "subnormals", command, "cpu", facts)


if __name__ == "__main__":
    result = measured(Path(sys.argv[1]), int(sys.argv[2]))
    print(tables.text(tuple(COLUMNS.values()), [[row[name] for name in COLUMNS] for row in result["rows"]]))
    print(f"wrote {record.write(result, record.RECORDS).name}")
