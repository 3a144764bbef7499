"""`eblvm bench growth`: how a step's time, memory and FLOPs grow, one axis at a time, beside what theory says.

Along an axis a figure is fitted by c + a x^p: what does not grow is c, and p is held against theory. Bytes and FLOPs
are counted, so their fit is exact up to terms that theory leaves out. Times are interleaved and enter the fit as
ratios to the axis's last value, by round; an interval of p is what the fit gives for rounds drawn again.
"""

import math
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from tqdm import tqdm

from eblvm.bench.contestants.steps import CaseStep
from eblvm.bench.profiling import profile
from eblvm.bench.tools import record
from eblvm.bench.tools.registry import Case
from eblvm.bench.tools.timing import elapsed_ms, interleaved, median, ratio_by_round
from eblvm.engine import tables
from eblvm.engine.config import Config
from eblvm.engine.planning import plan
from eblvm.engine.plotting import save, styled, subplots
from eblvm.engine.recipes import recipe
from eblvm.engine.system import keep_freed_memory

SCHEMA = "eblvm-growth/1"
FIGURES = {"step_ms": "time", "saved_mib": "bytes held", "peak_mib": "peak bytes", "gflop": "FLOPs"}
TOLERANCE = 0.1  # of an exponent
FLAT = 0.05  # a figure that moves by less than this fraction along an axis does not grow
POWERS = np.arange(25, 301) / 100
LEVEL, RESAMPLED = 0.9, 500  # of an exponent's interval
LARGE = {"CelebA64": 64, "CelebA128": 128, "CelebA256": 256}
KEPT = ("none", "blocks", "all")


class Axis(NamedTuple):
    """`theory` has the power of x by figure; what it leaves out is measured and not judged. Without `offset` all of a
    step's time grows with x, and c is 0: three values would leave c and p to chance."""

    name: str
    title: str
    values: Sequence[int]
    case: Callable[[int], Case]
    theory: Mapping[str, float]
    offset: bool = True


def grbm(visible: int = 560, **changes: Any) -> Case:
    """At Frey face's sizes, by the fused step."""
    return Case(recipe("freyface", method="bidsm").replaced(**changes), (visible,))


def deep(size: int = 16, **changes: Any) -> Case:
    """Small: where time is judged an axis is wider, as operators that compute little take their time to start."""
    method = changes.pop("method", "bimdsm")
    base = {"network": "lean", "width": 8, "depth": 12, "batch": 4}
    return Case(recipe("cifar10", method=method).replaced(**(base | changes)), (3, size, size))


def wider(size: int) -> Case:
    return deep(size, width=32, batch=2)


def layers(count: int) -> Case:
    """Without a lower level, which has no part in them."""
    return deep(32, method="mdsm", width=64, depth=count)


def newton(steps: int) -> Case:
    return grbm(best_response="newton", K=steps)


def toy(replicas: int) -> Case:
    return Case(recipe("checkerboard", method="bidsm").replaced(replicas=replicas), (2,))


TIME, HELD, PEAK, FLOPS = FIGURES
LINEAR = dict.fromkeys(FIGURES, 1.0)
GROWS, FIXED = {TIME: 1, FLOPS: 1}, {HELD: 0}  # in time and work; not in memory
AXES = (
    Axis("B", "batch, GRBM", (100, 200, 400, 800, 1600), lambda x: grbm(batch=x), LINEAR),
    Axis("D", "visible units, GRBM", (560, 1120, 2240, 4480, 8960), lambda x: grbm(x), GROWS),
    Axis("H", "latent units, GRBM", (100, 200, 400, 800), lambda x: grbm(latent=x), GROWS),
    Axis("H, large", "latent units beyond the cache", (800, 1600, 3200, 6400), lambda x: grbm(latent=x), GROWS),
    Axis("N", "unrolled steps, GRBM", (5, 10, 20, 40, 80), lambda x: grbm(N=x), GROWS | {HELD: 1}),
    Axis("K", "real lower steps, GRBM", (5, 10, 20, 40, 80, 160), lambda x: grbm(K=x), GROWS | FIXED),
    Axis("K, Newton", "the same beside a Newton step", (5, 10, 20, 40), newton, FIXED),
    Axis("L", "samples of h, VaGES-MDSM, deep", (2, 4, 8, 16), lambda x: deep(method="vages-mdsm", L=x), {FLOPS: 1}),
    Axis("N, deep", "unrolled steps, deep", (1, 2, 4, 8), lambda x: deep(N=x), {HELD: 0, FLOPS: 1}),
    Axis("K, deep", "real lower steps, deep", (1, 2, 4, 8), lambda x: deep(K=x), FIXED),
    Axis("batch, deep", "batch, deep", (4, 8, 16, 32, 64), lambda x: deep(32, width=32, batch=x), GROWS | {HELD: 1}),
    Axis("S", "image size, deep", (16, 32, 64, 128), wider, {TIME: 2, HELD: 2, FLOPS: 2}),
    Axis("width", "channels, deep", (16, 32, 64, 128), lambda x: deep(width=x), {FLOPS: 2}),
    Axis("depth", "layers, deep MDSM", (12, 18, 24), layers, GROWS | {HELD: 1}, offset=False),
    Axis("R", "replicas, checkerboard", (8, 16, 32, 64, 128), toy, GROWS | {PEAK: 1}),
)


def exponent(xs: Sequence[float], ys: Sequence[float], offset: bool = True) -> float:
    """p of c + a x^p with c >= 0 (c = 0 without `offset`), by the least relative error; 0 where y does not grow."""
    if max(ys) - min(ys) <= FLAT * max(ys):
        return 0.0
    weight = 1 / np.asarray(ys)
    u = (np.asarray(xs) / xs[-1]) ** POWERS[:, None] * weight  # a's column of the design; c's is the weight, y's is 1
    uu, uw, u1, ww, w1 = (u * u).sum(1), u @ weight, u.sum(1), weight @ weight, weight.sum()
    c = (w1 * uu - uw * u1) / (ww * uu - uw * uw)
    c = np.maximum(c, 0) if offset else np.zeros_like(c)
    a = (u1 - c * uw) / uu
    misfit = np.square(c[:, None] * weight + a[:, None] * u - 1).sum(1)
    return float(POWERS[misfit.argmin()])


def fitted(axis: Axis, readings: Sequence[Sequence[float]]) -> dict[str, float]:
    """p of an axis's times, readings[value][round], and the ends of its interval."""

    def power(rounds: Sequence[int]) -> float:
        chosen = [[one[r] for r in rounds] for one in readings]
        return exponent(axis.values, [ratio_by_round(one, chosen[-1]) for one in chosen], axis.offset)

    count = len(readings[0])
    drawn = np.random.default_rng(0).integers(count, size=(RESAMPLED, count))
    low, high = np.quantile([power(rounds) for rounds in drawn], [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return {"p": power(range(count)), "low": float(low), "high": float(high)}


def run(rounds: int, progress: bool = True, axes: Sequence[Axis] = AXES) -> dict[str, Any]:
    torch.set_num_threads(1)
    rows, fits = [], []
    if progress:
        print(f"{len(axes)} axes, {rounds} rounds: about {3 + len(axes) * rounds // 25} min", file=sys.stderr)
    for axis in tqdm(axes, desc="growth", disable=None if progress else True, file=sys.stderr, leave=False):
        steps = [CaseStep(axis.case(x)) for x in axis.values]
        (readings,) = interleaved([steps], rounds, "cpu")
        points = [profile.figures(step, median(found), None) for step, found in zip(steps, readings, strict=True)]
        rows += [{"axis": axis.name, "x": x} | point for x, point in zip(axis.values, points, strict=True)]
        for figure in FIGURES:
            ys = [point[figure] for point in points]
            if all(y is not None and y > 0 for y in ys):
                fit = fitted(axis, readings) if figure == TIME else {"p": exponent(axis.values, ys)}
                fits.append({"axis": axis.name, "figure": figure, **fit, "theory": axis.theory.get(figure)})
    body = {"rounds": rounds, "rows": rows, "fits": fits, "large": large(), "steps": steps_of_a_run()}
    with keep_freed_memory():
        body["threads"] = threads(rounds)
    return record.make(SCHEMA, "growth", f"eblvm bench growth --rounds {rounds}", "cpu", body)


def large(images: Mapping[str, int] = LARGE, checkpoints: Sequence[str] = KEPT) -> list[dict[str, Any]]:
    """Memory of the published CelebA64 network and of the same at more pixels, counted on the meta device."""
    config: Config = recipe("celeba64")
    found = []
    for name, size in images.items():
        for checkpoint in checkpoints:
            cost = plan.step_cost(config.replaced(checkpoint=checkpoint), (3, size, size))
            found.append({"images": name, "checkpoint": checkpoint, "batch": config.optimisation.batch,
                          "state_gib": cost.state_bytes / 2**30, "total_gib": cost.total_bytes / 2**30})  # fmt: skip
    return found


def steps_of_a_run(counts: Sequence[int] = (200, 400, 800, 1600), repeats: int = 3) -> dict[str, Any]:
    """CPU seconds of so many steps in a row: a run does not grow slower."""
    step = CaseStep(grbm(batch=20))
    step()
    readings = [[elapsed_ms(step, count, "cpu") * count / 1e3 for count in counts] for _ in range(repeats)]
    seconds = [median(of_count) for of_count in zip(*readings, strict=True)]
    return {"counts": list(counts), "seconds": seconds, "p": exponent(counts, seconds), "theory": 1}


def threads(rounds: int) -> list[dict[str, Any]]:
    """Wall time of a step on one thread over that on two, by turns: the one reading here that a busy machine spoils.

    The first row has no engine in it: it is what two threads of this machine give torch's own convolution."""
    steps: dict[str, Callable[[], object]] = {
        "torch's convolution, width 64": convolution(64),
        "deep, width 64": CaseStep(deep(32, width=64, batch=16)),
        "GRBM": CaseStep(grbm()),
        "checkerboard, 10 replicas": CaseStep(toy(10)),
    }
    found = []
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
        found.append({"step": name, "speed_up": median(ratios)})
    return found


def convolution(width: int, batch: int = 16, size: int = 32) -> Callable[[], object]:
    """A layer of the deep network by torch, forward and backward."""
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


def table(result: dict[str, Any]) -> tuple[list[str], list[list[Any]]]:
    """A row per axis: the powers fitted, with theory's behind a slash."""
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


def large_table(result: dict[str, Any]) -> tuple[list[str], list[list[Any]]]:
    names = {"images": "images", "checkpoint": "checkpoint", "batch": "batch", "state_gib": "state GiB",
             "total_gib": "step GiB"}  # fmt: skip
    return list(names.values()), [[row[name] for name in names] for row in result["large"]]


def threads_table(result: dict[str, Any]) -> tuple[list[str], list[list[Any]]]:
    return ["step", "two threads over one"], [list(row.values()) for row in result["threads"]]


def format_table(result: dict[str, Any]) -> str:
    parts = (table(result), large_table(result), threads_table(result))
    return "\n\n".join([*(tables.text(*part) for part in parts), *above(result)])


@styled
def plot(result: dict[str, Any], path: Path) -> None:
    """A panel per axis: every figure over its first value."""
    axes = list(dict.fromkeys(row["axis"] for row in result["rows"]))
    titles = {axis.name: axis.title for axis in AXES}
    columns = 4
    figure, panels = subplots(
        math.ceil(len(axes) / columns), columns, figsize=(13, 3 * math.ceil(len(axes) / columns)), squeeze=False
    )
    for panel in panels.flat[len(axes) :]:
        panel.set_visible(False)
    for panel, axis in zip(panels.flat, axes, strict=False):
        rows = [row for row in result["rows"] if row["axis"] == axis]
        xs = [row["x"] for row in rows]
        for i, (name, title) in enumerate(FIGURES.items()):
            if all(row[name] for row in rows):
                ys = [row[name] / rows[0][name] for row in rows]
                panel.plot(xs, ys, "o-", color=f"C{i}", label=title, markersize=3)
        panel.set(xscale="log", yscale="log", title=titles.get(axis, axis), xlabel=axis.split(",")[0])
        panel.set_xticks(xs, xs)
        panel.minorticks_off()
        panel.grid()
    panels.flat[0].legend(fontsize=7)
    panels.flat[0].set_ylabel("over the first")
    save(figure, path, of=result["rows"])
