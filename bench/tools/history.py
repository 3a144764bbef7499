"""`eblvm bench history --html FILE`: every record over its commits, a chart per row, in one page without a script.

The points of a row are one figure of one case in the records of one name and one machine, by date. A figure that is
better when it falls is drawn as it is; the last point's change against the one before is written next to it.
"""

import html
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from eblvm.bench.tools.records import files
from eblvm.bench.tools.records import history as lines
from eblvm.engine.errors import UserError

# What is drawn, by the record's word: what it is, in which unit, and whether less is better.
FIGURES = {
    "engine_ms": ("time of a step", "ms", True),
    "ms": ("time of a step", "ms", True),
    "step_ms": ("time of a step", "ms", True),
    "head_ms": ("time of a step", "ms", True),
    "after_ms": ("time of a step", "ms", True),
    "ratio": ("naive / engine", "x", False),
    "to_mdsm": ("step / MDSM's step", "x", True),
    "saved_mib": ("saved bytes", "MiB", True),
    "held_mib": ("bytes held", "MiB", True),
    "peak_mib": ("peak", "MiB", True),
    "images_per_s": ("images per second", "1/s", False),
}
KEYS = ("case", "op", "series", "N", "K", "L", "C")  # what names a row
WIDTH, HEIGHT, LEFT, TOP, BOTTOM = 300, 110, 8, 14, 16
COLOURS = ("#2563a8", "#c2571a", "#3c8d40", "#8a4fb0")
STYLE = """
body { font: 14px/1.45 system-ui, sans-serif; margin: 1.5rem auto; max-width: 1320px; padding: 0 1rem; color: #222; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.15rem; margin-top: 2rem; border-bottom: 1px solid #ccc; }
h3 { font-size: .85rem; font-weight: 600; margin: 1rem 0 .2rem; overflow-wrap: anywhere; }
.row { display: flex; flex-wrap: wrap; gap: .6rem; } figure { margin: 0; width: 302px; }
figcaption { font-size: .75rem; color: #555; } svg { background: #fafafa; border: 1px solid #e3e3e3; }
svg text { font: 10px system-ui, sans-serif; fill: #555; } summary { cursor: pointer; }
table { border-collapse: collapse; font-size: .8rem; } td, th { padding: .1rem .6rem .1rem 0; text-align: left; }
nav a { margin-right: .8rem; }
@media (prefers-color-scheme: dark) {
  body { background: #16181c; color: #ddd; } svg { background: #1e2127; border-color: #333; }
  svg text, figcaption { fill: #aaa; color: #aaa; } a { color: #8ab4f8; }
}
"""


class Point(NamedTuple):
    date: str
    commit: str
    machine: str
    value: float
    file: str


Rows = dict[str, dict[str, list[Point]]]  # {row: {figure: points in time}}


def load(folder: Path) -> list[dict[str, Any]]:
    """The records of a folder that have a name, a date and rows; the oldest first."""
    if not folder.is_dir():
        raise UserError(f"{folder} is no folder of records; give --json the folder, or remove it for bench/records")
    drawn = []
    for content in (record for path in files(folder) for record in lines(path)):
        if all(isinstance(content.get(key), str) for key in ("name", "date", "commit")):
            rows = content.get("rows")
            if isinstance(rows, list) and rows and all(isinstance(row, dict) for row in rows):
                drawn.append(content)
    return sorted(drawn, key=lambda content: content["date"])  # of a day in the order of the lines


def name_of(row: dict[str, Any]) -> str:
    parts = [
        f"{row[key]}" if key in ("case", "op", "series") else f"{key}={row[key]}"
        for key in KEYS
        if row.get(key) not in (None, "")
    ]
    return " ".join(parts)


def figures_of(row: dict[str, Any]) -> Iterator[tuple[str, float]]:
    for figure in FIGURES:
        value = row.get(figure)
        if isinstance(value, list) and value and all(isinstance(x, int | float) for x in value):
            value = sorted(value)[len(value) // 2]
        if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
            yield figure, float(value)


def machine_of(content: dict[str, Any]) -> str:
    facts = content.get("machine", {})
    return str(facts.get("gpu") or facts.get("cpu") or "unknown")


def collect(records: list[dict[str, Any]]) -> dict[str, Rows]:
    """{name of the records: {row: {figure: its points}}}."""
    by_name: dict[str, Rows] = {}
    for content in records:
        rows = by_name.setdefault(content["name"], {})
        for row in content["rows"]:
            if not (name := name_of(row)):
                continue
            for figure, value in figures_of(row):
                point = Point(content["date"], content["commit"], machine_of(content), value, content["file"])
                rows.setdefault(name, {}).setdefault(figure, []).append(point)
    return {name: rows for name, rows in by_name.items() if rows}


def amount(value: float, unit: str) -> str:
    return f"{value:,.0f} {unit}" if abs(value) >= 100 else f"{value:.3g} {unit}"


def chart(figure: str, points: list[Point], machines: list[str]) -> str:
    """An SVG from 0 to above the largest value, a colour for each machine; a point's title has its commit and value."""
    what, unit, smaller = FIGURES[figure]
    top = 1.15 * max(p.value for p in points) or 1.0

    def place(i: int) -> tuple[float, float]:
        across = 0.5 if len(points) == 1 else i / (len(points) - 1)
        return LEFT + 12 + across * (WIDTH - LEFT - 90), TOP + (1 - points[i].value / top) * (HEIGHT - TOP - BOTTOM)

    drawn = [f'<line x1="{LEFT}" x2="{WIDTH - 8}" y1="{HEIGHT - BOTTOM}" y2="{HEIGHT - BOTTOM}" stroke="#999"/>']
    for m, machine in enumerate(machines):
        if not (mine := [i for i, p in enumerate(points) if p.machine == machine]):
            continue
        colour = COLOURS[m % len(COLOURS)]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in map(place, mine))
        drawn.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="1.5"/>')
        for i in mine:
            x, y = place(i)
            p = points[i]
            title = html.escape(f"{p.date} {p.commit}: {p.value:.4g} {unit} ({p.machine})")
            drawn.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}"><title>{title}</title></circle>')
    x, y = place(len(points) - 1)
    drawn.append(f'<text x="{x + 6:.1f}" y="{y - 4:.1f}">{amount(points[-1].value, unit)}</text>')
    for i in {0, len(points) - 1}:
        anchor = "end" if i and len(points) > 1 else "start"
        drawn.append(
            f'<text x="{WIDTH - 8 if anchor == "end" else LEFT}" y="{HEIGHT - 4}" text-anchor="{anchor}">'
            f"{html.escape(points[i].commit)}</text>"
        )
    caption = f"{what}, {unit}; {'less' if smaller else 'more'} is better{changed(points)}"
    return (
        f'<figure><svg width="{WIDTH}" height="{HEIGHT}" role="img" aria-label="{html.escape(caption)}">'
        f"{''.join(drawn)}</svg><figcaption>{html.escape(caption)}</figcaption></figure>"
    )


def changed(points: list[Point]) -> str:
    """The change of the last point from the one before it on the same machine."""
    before = [p for p in points[:-1] if p.machine == points[-1].machine]
    if not before or not before[-1].value:
        return ""
    return f"; {100 * (points[-1].value / before[-1].value - 1):+.1f} % since {before[-1].commit}"


def page(records: list[dict[str, Any]]) -> str:
    by_name = collect(records)
    machines = list(dict.fromkeys(map(machine_of, records)))
    legend = " ".join(
        f'<span style="color: {COLOURS[i % len(COLOURS)]}">&#9679;</span> {html.escape(m)}'
        for i, m in enumerate(machines)
    )
    links = " ".join(f'<a href="#{html.escape(name)}">{html.escape(name)}</a>' for name in by_name)
    parts = []
    for name, rows in by_name.items():
        mine = [r for r in records if r["name"] == name]
        made = "".join(
            f"<tr><td>{html.escape(r['date'])}<td>{html.escape(r['commit'])}<td>{html.escape(machine_of(r))}"
            f"<td><code>{html.escape(str(r.get('command', '')))}</code></tr>"
            for r in mine
        )
        charts = ""
        for row, figures in rows.items():
            drawn = "".join(chart(figure, points, machines) for figure, points in figures.items())
            charts += f'<h3>{html.escape(row)}</h3><div class="row">{drawn}</div>'
        parts.append(
            f'<h2 id="{html.escape(name)}">{html.escape(name)}</h2><details><summary>{len(mine)} records</summary>'
            f"<table><tr><th>date<th>commit<th>machine<th>command</tr>{made}</table></details>{charts}"
        )
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<title>Benchmarks over commits - eblvm</title><style>{STYLE}</style></head><body>
<h1>Benchmarks over commits</h1>
<p>{len(records)} records; a chart per row and figure, each machine a colour, commits from left to right. Times are
medians of single-thread CPU time; only points of one machine compare. A point shows its commit and value when the
pointer rests on it.</p><p>{legend}</p><nav>{links}</nav>{"".join(parts)}</body></html>
"""


def write(records: list[dict[str, Any]], path: Path) -> None:
    try:
        path.write_text(page(records), encoding="utf-8")
    except OSError as error:
        raise UserError(f"cannot write {path} ({error.strerror}); give --html a file in a folder that exists") from None
