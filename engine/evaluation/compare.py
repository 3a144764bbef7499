"""`eblvm eval --compare`: the figures of several evaluated runs in one table and one picture."""

import os
from pathlib import Path
from typing import Any

from eblvm.engine.errors import UserError
from eblvm.engine.evaluation import plots
from eblvm.engine.evaluation.figures import Figure
from eblvm.engine.runs.stats import read_eval

Cell = tuple[Figure, float]  # value or why there is none, deviation over replicas


def read_evaluation(folder: Path) -> dict[str, Any]:
    path = folder / "eval.json"
    if not path.is_file():
        raise UserError(f"{folder} has no eval.json; run 'eblvm eval {folder}' first")
    facts = read_eval(path)
    if facts is None:
        raise UserError(f"{path} is not an evaluation of this version; run 'eblvm eval {folder}' again")
    return facts


def compare(folders: list[Path], picture: Path) -> dict[str, dict[str, Cell]]:
    """{figure: {run: (value, deviation)}} over every figure that at least one of the runs has. A figure that depends on
    a number of samples has it in its name, so FIDs of different counts stay apart."""
    labels = _labels(folders)
    evaluations = {label: read_evaluation(folder) for label, folder in zip(labels, folders, strict=True)}
    if (sets := len({facts.get("data") for facts in evaluations.values()})) > 1:
        raise UserError(f"the {len(folders)} runs were evaluated on {sets} different data sets; compare like with like")
    names = dict.fromkeys(name for facts in evaluations.values() for name in facts["mean"])
    table = {
        name: {
            label: (facts["mean"][name], facts["deviation"][name])
            for label, facts in evaluations.items()
            if name in facts["mean"]
        }
        for name in names
    }
    plots.figures(table, picture)
    return table


def by_replica(folders: list[Path]) -> list[dict[str, Figure]]:
    """The figures of every replica of the runs that have several: a row each, in the order of the run's replicas."""
    of_replicas = []
    for label, folder in zip(_labels(folders), folders, strict=True):
        rows = read_evaluation(folder)["replicas"]
        of_replicas += [{"run": label, **row} for row in rows] if len(rows) > 1 else []
    return of_replicas


def _labels(folders: list[Path]) -> list[str]:
    """The folders' paths without their common part."""
    if len(set(folders)) < len(folders):
        raise UserError("got the same folder twice; compare different runs")
    names = [folder.name for folder in folders]
    if len(set(names)) == len(names):
        return names
    common = os.path.commonpath([folder.resolve() for folder in folders])
    return [str(folder.resolve().relative_to(common)) for folder in folders]
