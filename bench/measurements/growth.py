"""`eblvm bench growth`: growth of a step's time, memory and FLOPs, one axis at a time, next to theory.

Along an axis a figure is fitted by c + a x^p: what does not grow is c, and p is compared with theory. Bytes and FLOPs
are counted, so their fit is exact up to terms that theory leaves out. Times are interleaved and enter the fit as
ratios to the axis's last value, by round; an interval of p is what the fit gives for rounds drawn again.
"""

import math
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from tqdm import tqdm

from eblvm.bench.contestants.steps import CaseStep
from eblvm.bench.measurements.growth_axes import AXES, FIGURES, TIME, Axis, deep, grbm, toy
from eblvm.bench.profiling import profile
from eblvm.bench.tools import record
from eblvm.bench.tools.columns import Table
from eblvm.bench.tools.fit import exponent, fitted
from eblvm.bench.tools.memory import GIB
from eblvm.bench.tools.timing import elapsed_ms, interleaved, median
from eblvm.engine import tables
from eblvm.engine.config import Config
from eblvm.engine.machine import keep_freed_memory
from eblvm.engine.planning import plan
from eblvm.engine.recipes import recipe

SCHEMA = "eblvm-growth/1"
TOLERANCE = 0.1  # of an exponent
LARGE = {"CelebA64": 64, "CelebA128": 128, "CelebA256": 256}
KEPT = ("none", "blocks", "all")


def run(rounds: int, progress: bool = True, axes: Sequence[Axis] = AXES) -> dict[str, Any]:
    torch.set_num_threads(1)
    rows, fits = [], []
    if progress:
        print(f"{len(axes)} axes, {rounds} rounds: about {3 + len(axes) * rounds // 25} min", file=sys.stderr)
    for axis in tqdm(axes, desc="growth", disable=None if progress else True, file=sys.stderr, leave=False):
        steps = [CaseStep(axis.case(x)) for x in axis.values]
        (readings,) = interleaved([steps], rounds, "cpu")
        points = [profile.figures(step, median(times), None) for step, times in zip(steps, readings, strict=True)]
        rows += [{"axis": axis.name, "x": x} | point for x, point in zip(axis.values, points, strict=True)]
        for figure in FIGURES:
            ys = [point[figure] for point in points]
            if all(y is not None and y > 0 for y in ys):
                fit = fitted(axis.values, readings, axis.offset) if figure == TIME else {"p": exponent(axis.values, ys)}
                fits.append({"axis": axis.name, "figure": figure, **fit, "theory": axis.theory.get(figure)})
    body = {"rounds": rounds, "rows": rows, "fits": fits, "large": large(), "steps": steps_of_a_run()}
    with keep_freed_memory():
        body["threads"] = threads(rounds)
    return record.make(SCHEMA, "growth", f"eblvm bench growth --rounds {rounds}", "cpu", body)


def large(images: Mapping[str, int] = LARGE, checkpoints: Sequence[str] = KEPT) -> list[dict[str, Any]]:
    """Memory of the published CelebA64 network and of the same at more pixels, counted on the meta device."""
    config: Config = recipe("celeba64")
    rows = []
    for name, size in images.items():
        for checkpoint in checkpoints:
            cost = plan.step_cost(config.replaced(checkpoint=checkpoint), (3, size, size))
            rows.append({"images": name, "checkpoint": checkpoint, "batch": config.optimisation.batch,
                          "state_gib": cost.state_bytes / GIB, "total_gib": cost.total_bytes / GIB})  # fmt: skip
    return rows


def steps_of_a_run(counts: Sequence[int] = (200, 400, 800, 1600), repeats: int = 3) -> dict[str, Any]:
    """CPU seconds of so many steps in a row: a run must not slow down."""
    step = CaseStep(grbm(batch=20))
    step()
    readings = [[elapsed_ms(step, count, "cpu") * count / 1e3 for count in counts] for _ in range(repeats)]
    seconds = [median(of_count) for of_count in zip(*readings, strict=True)]
    return {"counts": list(counts), "seconds": seconds, "p": exponent(counts, seconds), "theory": 1}


def threads(rounds: int) -> list[dict[str, Any]]:
    """Wall time of a step on one thread over that on two, by turns: the one reading here that a busy machine spoils.
    The first row is torch's own convolution, without the engine: the most that a second thread can give on this
    machine."""
    steps: dict[str, Callable[[], object]] = {
        "torch's convolution, width 64": convolution(64),
        "deep, width 64": CaseStep(deep(32, width=64, batch=16)),
        "GRBM": CaseStep(grbm()),
        "checkerboard, 10 replicas": CaseStep(toy(10)),
    }
    rows = []
    for name, step in steps.items():
        ratios = []
        step()
        repeats = max(1, math.ceil(0.2 / _wall(step, 1)))
        for _ in range(rounds):
            torch.set_num_threads(1)
            one = _wall(step, repeats)
            torch.set_num_threads(2)
            ratios.append(one / _wall(step, repeats))
        torch.set_num_threads(1)
        rows.append({"step": name, "speed_up": median(ratios)})
    return rows


def convolution(width: int, batch: int = 16, size: int = 32) -> Callable[[], object]:
    """Forward and backward pass of one layer of the deep network, by torch."""
    x = torch.ones(batch, width, size, size, requires_grad=True)
    weight = torch.ones(width, width, 3, 3, requires_grad=True)
    ones = torch.ones(batch, width, size, size)
    return lambda: torch.autograd.grad(torch.conv2d(x, weight, padding=1), (x, weight), ones)


def _wall(step: Callable[[], object], repeats: int) -> float:
    begin = time.perf_counter()
    for _ in range(repeats):
        step()
    return (time.perf_counter() - begin) / repeats


def above(result: dict[str, Any]) -> list[str]:
    """A sentence for each exponent above theory."""
    return [
        f"{fit['axis']}: {FIGURES[fit['figure']]} grows with power {fit['p']:.2f}, theory says {fit['theory']}"
        for fit in result["fits"]
        if fit["theory"] is not None and fit["p"] > fit["theory"] + TOLERANCE
    ]


def table(result: dict[str, Any]) -> Table:
    """A row per axis: the fitted powers, each with theory's behind a slash."""
    header = ["axis", "values", *FIGURES.values()]
    rows = []
    for axis in dict.fromkeys(row["axis"] for row in result["rows"]):
        fits = {fit["figure"]: fit for fit in result["fits"] if fit["axis"] == axis}
        xs = [row["x"] for row in result["rows"] if row["axis"] == axis]
        rows.append([axis, f"{xs[0]} to {xs[-1]}", *(_cell(fits.get(figure)) for figure in FIGURES)])
    steps = result["steps"]
    span = f"{steps['counts'][0]} to {steps['counts'][-1]}"
    return header, [*rows, ["steps", span, _cell(steps), *[""] * (len(FIGURES) - 1)]]


def _cell(fit: dict[str, Any] | None) -> str:
    if fit is None:
        return ""
    interval = f" ({fit['low']:.2f} to {fit['high']:.2f})" if "low" in fit else ""
    return f"{fit['p']:.2f}{interval}" + ("" if fit["theory"] is None else f" / {fit['theory']:g}")


def large_table(result: dict[str, Any]) -> Table:
    names = {"images": "images", "checkpoint": "checkpoint", "batch": "batch", "state_gib": "state GiB",
             "total_gib": "step GiB"}  # fmt: skip
    return list(names.values()), [[row[name] for name in names] for row in result["large"]]


def threads_table(result: dict[str, Any]) -> Table:
    return ["step", "two threads over one"], [list(row.values()) for row in result["threads"]]


def format_table(result: dict[str, Any]) -> str:
    parts = (table(result), large_table(result), threads_table(result))
    return "\n\n".join([*(tables.text(*part) for part in parts), *above(result)])
