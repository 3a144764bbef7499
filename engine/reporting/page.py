"""`eblvm report`: runs as one self-contained HTML page. The charts are SVG, drawn by report.js from the data inside.

`collect` gives the content of a run's page, as plain JSON: everything in its folder, without torch.
"""

from __future__ import annotations

import base64
import html
import json
import math
from pathlib import Path
from typing import Any

from eblvm.engine import recipes
from eblvm.engine.runs import summary
from eblvm.engine.runs.stats import MEASURED, NAMES
from eblvm.engine.runs.summary import RunSummary

HERE = Path(__file__).parent
NOTHING = "default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'unsafe-inline'"
HIDDEN = ("seconds",)  # a curve that says nothing
POINTS = 800  # of a curve on a page
LARGEST = 4 * 2**20  # bytes of a picture on a page
PICTURES = {
    "density": "Density: data and model",
    "samples": "Samples",
    "samples-joint": "Samples of p(v, h)",
    "samples-given-h": "Samples of p(v | h)",
    "samples-conditional": "Samples for four values of h, a row each",
    "samples-interpolation": "Interpolation between the posterior means of two samples, a row each",
    "reconstruction": "Reconstructions: test sample and its reconstruction, side by side",
    "neighbours": "Samples (left) and their nearest training images",
    "tsne": "Latent map: t-SNE of posterior means, coloured by label",
    "gradient_bias": "Bias of the gradient against N and K",
    "early_stopping": "FID of the checkpoints",
}


def page(runs: list[dict[str, Any]], live: str = "") -> str:
    """The page of runs as `collect` gives them. `live` is the address that a served page is refreshed from."""
    title = ", ".join(run["name"] for run in runs)
    # "</" cannot end the script inside of a string that a file's name is part of.
    data = json.dumps({"runs": runs, "names": NAMES, "hidden": HIDDEN, "live": live}).replace("</", "<\\/")
    policy = NOTHING + ("; connect-src 'self'" if live else "")
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<title>{html.escape(title)} - eblvm</title>
<style>{(HERE / "report.css").read_text()}</style>
</head>
<body>
<main id="main"><noscript>This page draws its charts with a script that is inside of it.</noscript></main>
<script type="application/json" id="data">{data}</script>
<script>{(HERE / "report.js").read_text()}</script>
</body>
</html>
"""


def collect(folder: Path, label: str | None = None) -> dict[str, Any]:
    """A run as a page shows it."""
    run = summary.summarise(folder)
    evaluation = summary.evaluation_of(folder) or {}
    config = run.config
    return {
        "name": label or folder.name,
        "folder": str(folder),
        "recipe": config.recipe,
        "method": config.method.kind,
        "model": config.model.kind,
        "state": run.state,
        "step": run.step,
        "steps": run.steps,
        "size": summary.size_text(run.size),
        "command": recipes.command(config) or "a model of its own: eblvm.train in Python",
        "parent": run.parent,
        "best": None if run.best is None else {"value": run.best[0], "step": run.best[1]},
        "options": {leaf.name: _plain(leaf.value) for leaf in config.leaves()},
        "series": series_of(run),
        **(rows_of(run, evaluation.get("replicas", [])) if config.replicated else {"rows": [], "row_columns": []}),
        "speed": {name: run.last[name] for name in MEASURED if name in run.last},
        "figures": {k: _plain(v) for k, v in evaluation.get("mean", {}).items()},
        "deviation": {k: _plain(v) for k, v in evaluation.get("deviation", {}).items()},
        "likelihood": evaluation.get("likelihood"),
        "evaluated": {k: evaluation.get(k) for k in ("model", "step", "versions", "samples")} if evaluation else None,
        "sections": {k: s.get("settings", {}) for k, s in evaluation.get("sections", {}).items()},
        "pictures": pictures_of(folder),
    }


def rows_of(run: RunSummary, evaluated: list[dict[str, Any]]) -> dict[str, Any]:
    """A row per replica, in their order: what its training and its evaluation gave."""
    rows = [list(map(_plain, row)) for row in summary.replica_rows(run.folder, run.config)]
    names = [name for name in (evaluated[0] if evaluated else {}) if name != "replica"]
    for row, figures in zip(rows, evaluated, strict=False):
        row += [_plain(figures.get(name)) for name in names]
    return {"rows": rows, "row_columns": [*summary.ROW_COLUMNS, *names]}


def series_of(run: RunSummary) -> dict[str, list[list[Any]]]:
    """Curves [[step, value], ...] by name, one per replica; long ones are thinned, their ends are kept."""
    labels = [f"seed={s} lr={rate:g}" for s, rate in summary.replica_names(run.config.optimisation)]
    series: dict[str, list[list[Any]]] = {}
    for row in summary.rows_of(run.folder):
        for name, value in row.items():
            if name == "step":
                continue
            values = value if isinstance(value, list) else [value]
            for label, x in zip(labels if len(values) > 1 else [""], values, strict=False):
                if isinstance(x, int | float) and math.isfinite(x):
                    series.setdefault(f"{name} {label}".strip(), []).append([row["step"], x])
    return {name: thinned(points) for name, points in series.items()}


def thinned(points: list[list[Any]]) -> list[list[Any]]:
    stride = -(-len(points) // POINTS)
    return points if stride <= 1 else [*points[:-1:stride], points[-1]]


def pictures_of(folder: Path) -> list[dict[str, str]]:
    """The pictures of a run's folder with their titles, the newest preview of each kind last, as data URIs."""
    files = {path.stem: path for path in sorted(folder.glob("*.png")) if path.stem != "curves"}
    ordered = [name for name in PICTURES if name in files] + [n for n in files if n not in PICTURES]
    titled = [(title_of(name), files[name]) for name in ordered]
    previews: dict[str, Path] = {}
    for path in sorted((folder / "previews").glob("*.png")):
        previews[path.stem.rpartition("-")[0]] = path
    titled += [(f"Preview at step {int(p.stem.rpartition('-')[2])}: {kind}", p) for kind, p in previews.items()]
    return [
        {"title": title, "data": "data:image/png;base64," + base64.b64encode(path.read_bytes()).decode()}
        for title, path in titled
        if path.stat().st_size <= LARGEST
    ]


def title_of(stem: str) -> str:
    if stem.startswith("ood-"):
        return f"Out-of-distribution detection against {stem.removeprefix('ood-')}: log density of both sets"
    return PICTURES.get(stem, stem)


def _plain(value: Any) -> Any:
    """As JSON has it: no NaN, no infinity."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return list(value) if isinstance(value, tuple) else value
