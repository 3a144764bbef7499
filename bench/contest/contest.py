"""`eblvm bench SUITE --contestants`: the engine next to other libraries, case by case.

Before a contestant is timed its result is compared with the engine's in fp64, on a small model of the same kind, from
the same parameters and for the same noise. Times are by turns; a ratio is the median of the rounds' ratios to the
engine: above 1 the engine is faster.
"""

import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from tqdm import tqdm

from eblvm.bench.contest.task import Task
from eblvm.bench.contest.tasks import tasks
from eblvm.bench.contestants.roster import Contestant, of_suite
from eblvm.bench.tools import columns, record
from eblvm.bench.tools.agreement import AgreementError
from eblvm.bench.tools.memory import mib
from eblvm.bench.tools.timing import interleaved, median, ratio_by_round
from eblvm.engine import tables
from eblvm.engine.planning.footprint import Footprint, footprint

SCHEMA = "eblvm-contest/1"
COLUMNS = ("case", "contestant", "ms", "ratio", "difference", "saved_mib", "peak_mib", "note")


def run(
    suite: str,
    rounds: int,
    data: Path | None = None,
    progress: bool = True,
    chosen: Sequence[Task] | None = None,
    only: Sequence[str] = (),
) -> dict[str, Any]:
    """Return the record of a suite's contest, of the chosen tasks and contestants or of all. Raises `AgreementError` if
    a contestant's result is wrong and its deviation is not explained."""
    torch.set_num_threads(1)
    entered = [c for c in of_suite(suite) if not only or c.name in only]
    absent = {c.name: sentence for c in entered if (sentence := c.absence()) is not None}
    present = [c for c in entered if c.name not in absent]
    rows: list[dict[str, Any]] = []
    with (
        tempfile.TemporaryDirectory() as scratch,
        tqdm(desc=f"{suite} contest", disable=None if progress else True, file=sys.stderr) as bar,
    ):
        for task in tasks(suite, data, Path(scratch)) if chosen is None else chosen:
            bar.set_postfix_str(task.name)
            rows += contest(task, present, rounds)
            bar.update()
    body = {"suite": suite, "rounds": rounds, "load": load_average(), "absent": absent, "rows": rows}
    command = f"eblvm bench {suite} --contestants --rounds {rounds}"
    return record.make(SCHEMA, f"contest-{suite}", command, "cpu", body)


def load_average() -> float | None:
    """The machine's load average when the record is made: other work that ran during the contest."""
    return round(os.getloadavg()[0], 1) if hasattr(os, "getloadavg") else None


def contest(task: Task, contestants: Sequence[Contestant], rounds: int) -> list[dict[str, Any]]:
    """The rows of one task, the engine's first."""
    rows = [row(task, "engine")]
    steps: list[Any] = [task.engine()]
    timed = [rows[0]]
    for one in contestants:
        entry = row(task, one.name, note=" ".join(filter(None, (one.note, one.deviation))))
        try:
            if not task.suits(one):
                continue
            entry["difference"] = checked(task, one)
            step = task.enter(one)
            step()
            steps.append(step)
            timed.append(entry)
        except AgreementError:
            raise
        except Exception as error:  # another's code: what it raises is its row
            entry["note"] = f"cannot run: {type(error).__name__}: {first_sentence(error)}"
        rows.append(entry)
    (readings,) = interleaved([steps], rounds, "cpu", long=task.long)
    for entry, times, step in zip(timed, readings, steps, strict=True):
        entry |= {"ms": median(times), "ratio": ratio_by_round(times, readings[0])}
        inputs = getattr(step, "inputs", lambda: None)
        if inputs() is not None:
            used = counted(step, inputs)
            entry |= {"saved_mib": mib(used.saved_bytes), "peak_mib": mib(used.peak_bytes)}
    return rows


def counted(step: Any, inputs: Any) -> Footprint:
    """Count the bytes of a step; saved ones only where hooks can look inside, which they cannot under `torch.func`."""
    try:
        return footprint(step, inputs, getattr(step, "hooks", True))
    except RuntimeError as error:
        if "saved tensor hooks" not in str(error):
            raise
        return footprint(step, inputs, False)


def row(task: Task, name: str, **figures: Any) -> dict[str, Any]:
    return dict.fromkeys(COLUMNS) | {"case": task.name, "contestant": name, "note": ""} | figures


def first_sentence(error: Exception) -> str:
    return next(iter(str(error).strip().splitlines()), "")[:200]


def checked(task: Task, one: Contestant) -> float | None:
    difference = task.difference(one)
    if difference is not None and not difference <= one.tolerance and not one.deviation:
        raise AgreementError(
            f"{task.name}: {one.name} differs from the engine by {difference:.1e}, expected at most "
            f"{one.tolerance:.0e}; no speed is reported"
        )
    return difference


def format_table(result: dict[str, Any]) -> str:
    figures = tables.text(*columns.table(COLUMNS, result))
    return "\n".join([figures, *result["absent"].values()])
