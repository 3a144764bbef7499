"""What a notebook shows of a run: its curves, its samples, and both below its name."""

import base64
import html
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from eblvm.engine.errors import unknown
from eblvm.engine.evaluation import plots
from eblvm.engine.evaluation.image_sets import as_images
from eblvm.engine.plotting import Picture
from eblvm.engine.runs.stats import MEASURED

COLUMNS = 5  # of a grid of images


def curves(history: Mapping[str, list[Any]], names: Sequence[str] = ()) -> Picture:
    """The quantities of a log against the step: those of `names`, or all that are numbers and not the clock's."""
    numeric = [name for name, column in history.items() if any(isinstance(x, float) for x in column)]
    chosen = names or [name for name in numeric if name not in MEASURED]
    if wrong := next((name for name in chosen if name not in numeric), None):
        raise unknown("quantity", wrong, numeric)
    lines = {}
    for name in chosen:
        known = [(s, x) for s, x in zip(history["step"], history[name], strict=True) if isinstance(x, float)]
        lines[name] = [s for s, _ in known], [x for _, x in known]
    return plots.curves(lines)


def samples(v: Tensor, image_shape: tuple[int, int] | None) -> Picture:
    """Images as a grid, other samples as points."""
    if v.dim() != 4 and image_shape is None:
        return plots.scatter(v)
    return plots.shown_grid(plots.grid(as_images(v, image_shape), COLUMNS), f"{len(v)} samples")


def page(name: str, history: Mapping[str, list[Any]], folder: Path) -> str:
    """HTML of a run: its name, its curves and, if some were drawn, its samples."""
    pictures = [curves(history)._repr_png_()] if history.get("step") else []
    drawn = folder / "samples.png"
    if drawn.is_file() and not drawn.is_symlink():
        pictures.append(drawn.read_bytes())
    shown = [
        f'<img src="data:image/png;base64,{base64.b64encode(p).decode()}" style="max-width: 45em">' for p in pictures
    ]
    return "<br>".join([f"<code>{html.escape(name)}</code>", *shown])
