"""`eblvm bench gates`: the deterministic figures of a small set of cases against those recorded in the repository."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch

from eblvm.bench.contestants.steps import CaseStep
from eblvm.bench.tools import record, records, registry
from eblvm.engine.errors import UserError
from eblvm.engine.planning.footprint import footprint

SCHEMA = "eblvm-gates/1"
PATH = records.RECORDS / "gates.json"
ALLOWED = 0.02  # growth of a deterministic figure

Figures = Mapping[str, Any]  # saved_bytes, peak_bytes, flops, ops


class Change(NamedTuple):
    case: str
    figure: str
    before: float
    now: float

    def __str__(self) -> str:
        percent = f"{100 * (self.now / self.before - 1):+.1f} %" if self.before else "from nothing"
        return f"{self.case}: {self.figure} {self.before:.0f} -> {self.now:.0f} ({percent})"


def measure(step: CaseStep) -> dict[str, Any]:
    """The footprint of a step that has run once."""
    step()
    return footprint(step, step.inputs, step.hooks)._asdict()


def grown(case: str, now: Figures, before: Figures, allowed: float = ALLOWED) -> list[Change]:
    """The figures that have grown by more than the fraction `allowed`. None is a figure that cannot be measured."""
    return [
        Change(case, name, before[name], now[name])
        for name in before
        if before[name] is not None and now.get(name) is not None and now[name] > before[name] * (1 + allowed)
    ]


def measured() -> dict[str, Any]:
    """The gates' record of this version, with the versions that its figures depend on."""
    torch.set_num_threads(1)
    return {
        "schema": SCHEMA,
        "torch": torch.__version__.split("+")[0],
        "kernels": record.versions()["kernels"],
        "cases": {case.name: measure(CaseStep(case)) for case in registry.cases("gates")},
    }


def run(update: bool, path: Path = PATH) -> list[str]:
    """Sentences about the figures that have grown. `update` replaces the record instead."""
    before = None if update else records.read(path, SCHEMA)
    now = measured()
    if before is None:
        path.write_text(json.dumps(now, indent=1) + "\n")
        return []
    for what in ("torch", "kernels"):
        # A kernel that is new matters only if a figure grows; a change of backend explains itself.
        if not set(before[what].split(", ")) <= set(now[what].split(", ")):
            raise UserError(
                f"the gates were recorded with {what} {before[what]}, here it is {now[what]}, and figures depend on it;"
                " use the recorded one, or record again with 'eblvm bench gates --update'"
            )
    advice = "'eblvm bench gates --update' if that is meant"
    problems = [f"{name}: not measured any more; {advice}" for name in before["cases"] if name not in now["cases"]]
    for name, figures in now["cases"].items():
        if name not in before["cases"]:
            problems.append(f"{name}: not in the record; {advice}")
        else:
            problems += [str(change) for change in grown(name, figures, before["cases"][name])]
    return problems
