"""`eblvm bench SUITE`: engine against baseline after the correctness gate, memory and floor from the same set-up."""

import sys
from dataclasses import replace
from typing import Any

import torch
from tqdm import tqdm

from eblvm.bench.contestants.steps import CaseStep, Contest, NaiveStep, published
from eblvm.bench.measurements import kernels
from eblvm.bench.tools import agreement, columns, record, registry
from eblvm.bench.tools.floor import FloorStep
from eblvm.bench.tools.memory import mib
from eblvm.bench.tools.timing import interleaved, median
from eblvm.engine import tables
from eblvm.engine.planning.footprint import footprint

SCHEMA = "eblvm-bench/1"
COLUMNS = (
    "case", "engine_ms", "baseline_ms", "ratio", "twin_ms", "floor_ms", "saved_mib", "baseline_saved_mib", "peak_mib",
    "baseline_peak_mib", "gflop", "ops", "baseline_ops",
)  # fmt: skip


def run(suite: str, rounds: int, device: str, compile: bool, progress: bool = True) -> dict[str, Any]:
    """The record of a suite. Raises `agreement.AgreementError` before anything is timed if a gradient is wrong."""
    torch.set_num_threads(1)
    contests = kernels.contests(device) if suite == "kernels" else training_contests(suite, device, compile)
    groups = [[step for step in (c.engine, c.baseline, c.floor, c.twin) if step is not None] for c in contests]
    with tqdm(
        total=rounds * len(groups), desc=suite, disable=None if progress else True, file=sys.stderr, leave=False
    ) as bar:
        readings = interleaved(groups, rounds, device, bar.update)
    rows = [row(contest, times) for contest, times in zip(contests, readings, strict=True)]
    command = f"eblvm bench {suite} --rounds {rounds} --device {device}" + (" --compile" if compile else "")
    return record.make(SCHEMA, suite, command, device, {"rounds": rounds, "compiled": compile, "rows": rows})


def training_contests(suite: str, device: str, compiled: bool) -> list[Contest]:
    contests = []
    for case in registry.cases(suite):
        case = replace(case, config=case.config.replaced(device=device))
        agreement.check(case)
        engine = CaseStep(replace(case, config=case.config.replaced(compile=compiled)))
        if compiled:
            agreement.check_compiled(engine)
        naive = NaiveStep(published(case))
        twin = NaiveStep(case) if case.config.get("unroll_optimizer") == "sgd" else None
        contests.append(
            Contest(
                case.name,
                engine,
                engine.inputs,
                engine.hooks,
                naive,
                naive.inputs,
                FloorStep(case),
                traceable=not compiled,
                twin=twin,
            )
        )
    return contests


def row(contest: Contest, times: list[list[float]]) -> dict[str, Any]:
    """One row of the record; a figure that cannot be measured is null."""
    engine_ms, baseline_ms, *others = (median(t) for t in times)
    timed = dict(zip([name for name in ("floor", "twin") if getattr(contest, name)], others, strict=True))
    baseline = footprint(contest.baseline, contest.baseline_inputs)
    values: dict[str, Any] = {
        "case": contest.name,
        "engine_ms": engine_ms,
        "baseline_ms": baseline_ms,
        "ratio": baseline_ms / engine_ms,
        "twin_ms": timed.get("twin"),
        "floor_ms": timed.get("floor"),
        "baseline_saved_mib": mib(baseline.saved_bytes),
        "baseline_peak_mib": mib(baseline.peak_bytes),
        "baseline_ops": baseline.ops,
        **dict.fromkeys(("saved_mib", "peak_mib", "gflop", "ops")),
    }
    if contest.traceable:
        engine = footprint(contest.engine, contest.engine_inputs, contest.engine_hooks)
        values |= {
            "saved_mib": mib(engine.saved_bytes),
            "peak_mib": mib(engine.peak_bytes),
            "gflop": engine.flops / 1e9,
            "ops": engine.ops,
        }
    return {name: values[name] for name in COLUMNS}


def format_table(result: dict[str, Any]) -> str:
    return tables.text(*columns.table(COLUMNS, result))
