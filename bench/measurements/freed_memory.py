"""`eblvm bench freed-memory`: a deep step where freed memory stays with the process, and not.

glibc gives back the end of its heap whenever that is free, and large blocks at once. Each page of them then comes again
as a fault, and cleared. Every reading is a process of its own, by turns, as a heap depends on all that was in it
before.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch

from eblvm.bench.contestants.steps import CaseStep
from eblvm.bench.measurements import growth_axes, vages
from eblvm.bench.measurements.deep import DeepStep
from eblvm.bench.tools import record
from eblvm.bench.tools.columns import Table
from eblvm.bench.tools.timing import Step, elapsed_ms, median, ratio_by_round
from eblvm.engine.machine import keep_freed_memory, page_faults

SCHEMA = "eblvm-freed-memory/1"
COUNT = 6  # steps of a reading
STEPS_OF: dict[str, Callable[[], Step]] = {
    "16 px, 32 channels, batch 2": lambda: CaseStep(growth_axes.wider(16)),
    "32 px, 32 channels, batch 2": lambda: CaseStep(growth_axes.wider(32)),
    "64 px, 32 channels, batch 2": lambda: CaseStep(growth_axes.wider(64)),
    "128 px, 32 channels, batch 2": lambda: CaseStep(growth_axes.wider(128)),
    "32 px, 64 channels, batch 16": lambda: CaseStep(growth_axes.deep(32, width=64, batch=16)),
    "published CIFAR-10 network, batch 8": lambda: DeepStep(vages.deep_cases()[0].config),
}
KEPT, GIVEN_BACK = "kept", "given back"
TUNING = ("MALLOC_", "GLIBC_TUNABLES")


def readings(kept: bool) -> dict[str, list[float]]:
    """CPU milliseconds and page faults of a step, by case."""
    torch.set_num_threads(1)
    by_case = {}
    with keep_freed_memory() if kept else nullcontext():
        for name, made in STEPS_OF.items():
            step = made()
            elapsed_ms(step, 2, "cpu")
            before = page_faults()
            by_case[name] = [elapsed_ms(step, COUNT, "cpu"), (page_faults() - before) / COUNT]
    return by_case


def in_a_process(how: str) -> dict[str, list[float]]:
    command = [sys.executable, "-m", "eblvm.bench.measurements.freed_memory", how]
    untuned = {name: value for name, value in os.environ.items() if not name.startswith(TUNING)}
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, env=untuned)
    answer: dict[str, list[float]] = json.loads(done.stdout)
    return answer


def run(rounds: int) -> dict[str, Any]:
    pairs = [(in_a_process(KEPT), in_a_process(GIVEN_BACK)) for _ in range(rounds)]
    rows = []
    for name in STEPS_OF:
        kept, back = ([of[which][name] for of in pairs] for which in (0, 1))
        kept_ms, back_ms = ([ms for ms, _ in of] for of in (kept, back))
        faults = [median([count for _, count in of]) for of in (kept, back)]
        rows.append(
            {"case": name, "kept_ms": median(kept_ms), "given_back_ms": median(back_ms),
             "ratio": ratio_by_round(kept_ms, back_ms), "kept_faults": faults[0], "given_back_faults": faults[1]}
        )  # fmt: skip
    command = f"eblvm bench freed-memory --rounds {rounds}"
    return record.make(SCHEMA, "freed-memory", command, "cpu", {"rounds": rounds, "steps": COUNT, "rows": rows})


def table(result: dict[str, Any]) -> Table:
    header = ["deep step", "kept, ms", "given back, ms", "kept over given back", "faults, kept", "faults, given back"]
    rows = [[f"{x:.0f}" if isinstance(x, float) and x >= 100 else x for x in row.values()] for row in result["rows"]]
    return header, rows


if __name__ == "__main__":  # the process of a reading
    print(json.dumps(readings(sys.argv[1] == KEPT)))
