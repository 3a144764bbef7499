"""The picture of a profile: heat maps over its two axes, and cuts along each with a line per series."""

from pathlib import Path
from typing import Any

from eblvm.bench.profiling.profile import axes_of, surface
from eblvm.engine import tables
from eblvm.engine.plotting import save, styled, subplots

LABELS = {"N": "N, unrolled steps", "K": "K, real lower steps", "L": "L, samples of h", "C": "C, Langevin steps"}
TYPICAL = 5  # the value of an axis that a cut keeps constant, as in the papers' tables


@styled
def plot(result: dict[str, Any], path: Path) -> bool:
    """Write the picture; False if there is a single point and so nothing to draw."""
    axes = [name for name in axes_of(result) if len({row[name] for row in result["rows"] if name in row}) > 1]
    if not axes:
        return False
    first, second = (*axes, axes[0])[:2]
    rows, height = (2, 8.0) if first != second else (1, 4.2)
    figure, panels = subplots(rows, 2, figsize=(10, height), squeeze=False)
    where = result["machine"].get("gpu", result["machine"]["cpu"])
    title = f"One training step of {result['recipe']}: {result['method']} on {result['model']}, batch {result['batch']}"
    figure.suptitle(f"{title}\n{where}, torch {result['versions']['torch']}", fontsize=11)
    if first != second:
        heat_map(panels[0][0], result, "step_ms", "time per step [ms]", first, second)
        heat_map(panels[0][1], result, "peak_mib", "peak memory beyond the step's inputs [MiB]", first, second)
        cut(panels[1][0], result, "step_ms", "ms per step", first)
        cut(panels[1][1], result, "step_ms", "ms per step", second)
    else:
        cut(panels[0][0], result, "step_ms", "ms per step", first)
        cut(panels[0][1], result, "peak_mib", "peak MiB", first)
    save(figure, path, of=result["rows"])
    return True


def heat_map(panel: Any, result: dict[str, Any], figure: str, title: str, rows: str, columns: str) -> None:
    ys, xs, values = surface(result, figure, rows, columns)
    numbers = [[float("nan") if value is None else value for value in row] for row in values]
    highest = max((value for row in values for value in row if value is not None), default=1.0)
    panel.imshow(numbers, cmap="Blues", vmin=0, vmax=1.15 * highest, origin="lower", aspect="auto")
    panel.set(title=title, xlabel=LABELS[columns], ylabel=LABELS[rows])
    panel.set_xticks(range(len(xs)), xs)
    panel.set_yticks(range(len(ys)), ys)
    for i, row in enumerate(values):
        for j, value in enumerate(row):
            dark = value is not None and value > 0.65 * highest
            panel.text(j, i, tables.cell(value), ha="center", va="center", color="white" if dark else "black")


def cut(panel: Any, result: dict[str, Any], figure: str, label: str, axis: str) -> None:
    """A line per series over one axis; a series without that axis, such as Newton's without N, is a horizontal line."""
    others = [name for name in axes_of(result) if name != axis]
    fixed = {name: nearest({row[name] for row in result["rows"] if name in row}) for name in others}
    rows = [r for r in result["rows"] if all(r.get(n, value) == value for n, value in fixed.items())]
    highest = 0.0
    for i, series in enumerate(dict.fromkeys(row["series"] for row in rows)):
        mine = [row for row in rows if row["series"] == series and row[figure] is not None]
        line = sorted((row[axis], row[figure]) for row in mine if axis in row)
        highest = max([highest, *(row[figure] for row in mine)])
        if line:
            panel.plot(*zip(*line, strict=True), "o-", color=f"C{i}", label=series)
        elif mine:
            panel.axhline(mine[0][figure], linestyle="--", color=f"C{i}", label=series)
    at = ", ".join(f"{name}={value}" for name, value in fixed.items())
    ticks = sorted({row[axis] for row in rows if axis in row})
    panel.set(xlabel=LABELS[axis], ylabel=label, title=f"over {axis}" + (f" at {at}" if at else ""), xticks=ticks)
    panel.set_ylim(bottom=0, top=1.1 * highest)
    panel.grid()
    if any(row["series"] for row in rows):
        panel.legend()


def nearest(values: set[int]) -> int:
    return min(values, key=lambda value: abs(value - TYPICAL))
