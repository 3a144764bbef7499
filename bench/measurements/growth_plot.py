"""The picture of suite `growth`: a panel per axis."""

import math
from pathlib import Path
from typing import Any

from eblvm.bench.measurements.growth_axes import AXES, FIGURES
from eblvm.engine.plotting import save, styled, subplots


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
