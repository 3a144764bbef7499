"""`eblvm report`: runs as one self-contained HTML page. The charts are SVG, drawn by report.js from the data inside."""

from __future__ import annotations

import html
import json
from pathlib import Path
from typing import Any

from eblvm.engine.runs.stats import NAMES

HERE = Path(__file__).parent
NOTHING = "default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'unsafe-inline'"
HIDDEN = ("seconds",)  # a curve that says nothing


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
