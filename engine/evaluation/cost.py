"""The plan of an evaluation, said before it begins: its sections, the work in each, and its time the last time."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from eblvm.engine import sampling
from eblvm.engine.evaluation.section import EvalOptions, Section
from eblvm.engine.runs.saved import SavedRun


def plan_of(run: SavedRun, todo: Sequence[Section], reused: Sequence[str], options: EvalOptions) -> list[str]:
    """A line per section to come, and one for what is there already."""
    before = seconds_before(run.folder / "eval.json")
    lines = []
    for section in todo:
        known = f", {before[section.name]:.0f} s the last time" if before.get(section.name) else ""
        lines.append(f"to do: {section.name}{work(run, section, options)}{known}")
    if reused:
        lines.append(f"reused from eval.json: {', '.join(reused)} (--again computes them)")
    return lines


def work(run: SavedRun, section: Section, options: EvalOptions) -> str:
    """In sweeps and passes, which need the time."""
    replicas = f" for each of {len(run.thetas('last'))} replicas" if run.config.replicated else ""
    settings = section.settings
    if section.name == "likelihood" and "AIS" in str(settings.get("log_z", "")):
        return f": {settings['log_z']}, twice{replicas}"
    if section.name in ("samples", "fid") and options.samples is None:
        count = settings.get("count", options.fid)
        sampler = sampling.sampler_of(run, target=options.kind, steps=options.steps)
        inception = ", then Inception on them and on the reference" if section.name == "fid" else ""
        return f": {count} samples{sampler.work}{inception}"
    return replicas and f":{replicas}"


def seconds_before(path: Path) -> dict[str, float]:
    try:
        sections: Any = json.loads(path.read_text())["sections"]
        return {name: float(section["seconds"]) for name, section in sections.items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}
