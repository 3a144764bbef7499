"""Plots in one style, saved as what their name ends in: .png, .pdf or .svg, as a whole or not at all.

Nothing here changes the settings or the backend of a program that imports the engine.
"""

import functools
import hashlib
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import matplotlib
from matplotlib.figure import Figure

from eblvm.engine.durable import make_folder, write_atomic
from eblvm.engine.errors import UserError

STYLE = Path(__file__).with_name("plots.mplstyle")
FORMATS = (".png", ".pdf", ".svg")

P = ParamSpec("P")
T = TypeVar("T")


def styled(draw: Callable[P, T]) -> Callable[P, T]:
    """`draw` under the engine's style."""

    @functools.wraps(draw)
    def drawing(*arguments: P.args, **options: P.kwargs) -> T:
        with matplotlib.rc_context(fname=STYLE):
            return draw(*arguments, **options)

    return drawing


class Picture(Figure):
    """A figure that a notebook shows without pyplot."""

    def _repr_png_(self) -> bytes:
        buffer = io.BytesIO()
        with matplotlib.rc_context(fname=STYLE):
            self.savefig(buffer, format="png")
        return buffer.getvalue()


def subplots(rows: int = 1, columns: int = 1, *, figsize: tuple[float, float], **options: Any) -> tuple[Picture, Any]:
    """A figure with its axes, as pyplot's, but not registered with it."""
    figure = Picture(figsize=figsize, layout="constrained")
    return figure, figure.subplots(rows, columns, **options)


@styled
def save(figure: Figure, path: Path, of: Any = None) -> None:
    """Write the figure. `of` is what it shows: the file keeps its `facts_digest`."""
    suffix = path.suffix.lower() or ".png"
    if suffix not in FORMATS:
        raise UserError(f"cannot draw {path}; give a name that ends in {', '.join(FORMATS[:-1])} or {FORMATS[-1]}")
    known = {".pdf": {"CreationDate": None}, ".svg": {"Date": None}}.get(suffix, {})
    key = "Keywords" if suffix == ".pdf" else "Description"
    buffer = io.BytesIO()
    figure.savefig(buffer, format=suffix[1:], metadata=known | ({key: facts_digest(of)} if of is not None else {}))
    write(path, buffer.getvalue())


def write(path: Path, content: bytes) -> None:
    make_folder(path.parent)
    write_atomic(path, content)


def facts_digest(facts: Any) -> str:
    """A few letters that differ when the facts do."""
    return "data " + hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:16]
