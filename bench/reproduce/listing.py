"""The list of experiments, and the table of one: paper and ours side by side."""

from __future__ import annotations

import textwrap
from typing import Any

from eblvm.bench.reproduce import costs
from eblvm.bench.reproduce.experiments import NAMES, Experiment, Row, experiments
from eblvm.bench.tools import records
from eblvm.bench.tools.records import RECORDS
from eblvm.engine import tables

PAPERS = {
    "bism": "Bao et al. 2020, bi-level score matching",
    "vages": "Bao et al. 2021, variational (gradient) estimate of the score",
    "bidvl": "Kan et al. 2022, bi-level doubly variational learning",
}
CLOSE = 0.05  # relative difference from the paper within which a figure is called reproduced
NEAR = 0.02  # absolute difference from the row that it is compared with, in its own unit


def newest(name: str) -> dict[str, Any] | None:
    """The newest record of an experiment, if there is one."""
    of_name = [facts for path in records.files(RECORDS, f"reproduce-{name}") for facts in records.history(path)]
    return of_name[-1] if of_name else None


def differences(facts: dict[str, Any]) -> list[tuple[str, str, float, bool]]:
    """(label, figure, difference, relative?) of every figure that the paper, or the row it is compared with, has."""
    by_label = {row["label"]: row for row in facts["rows"]}
    gaps = []
    for row in facts["rows"]:
        for name, paper in row["paper"].items():
            if is_known(row["mean"].get(name)):
                gaps.append((row["label"], name, abs(row["mean"][name] - paper) / abs(paper), True))
        if row["beside"] and facts["rows"]:
            other = by_label[row["beside"]]["mean"]
            first = next(iter(row["mean"]))
            if is_known(row["mean"][first]) and is_known(other[first]):
                gaps.append((row["label"], first, abs(row["mean"][first] - other[first]), False))
    return gaps


def state(experiment: Experiment) -> str:
    """The state of an experiment here, from its newest record."""
    facts = newest(experiment.name)
    if facts is None:
        return "waiting for a GPU" if experiment.needs == "gpu" else "not run yet"
    shortened = f", {facts['steps']} steps" if facts["steps"] is not None else ""
    many = f"{facts['seeds']} seeds" if facts["seeds"] > 1 else "one seed"
    where = f"{many}{shortened}, {facts['date']}"
    worst: dict[tuple[str, bool], tuple[float, str]] = {}
    for label, name, difference, relative in differences(facts):
        key = (name, relative)
        worst[key] = max(worst.get(key, (0.0, label)), (difference, label))
    if not worst:
        return f"run: {where}" if not facts["small"] else f"small scale: {where}"
    parts = [
        f"{NAMES.get(name, name)} within "
        + (f"{100 * d:.2g} % of the paper" if relative else f"{d:.2g} of the row beside")
        for (name, relative), (d, _) in worst.items()
    ]
    unknown = sum(not is_known(mean) for row in facts["rows"] for mean in row["mean"].values())
    parts += [f"{unknown} figure{'s' if unknown > 1 else ''} not known"] if unknown else []
    good = not unknown and all(d <= (CLOSE if relative else NEAR) for (_, relative), (d, _) in worst.items())
    word = "small scale" if facts["small"] else "reproduced" if good and not shortened else "run"
    return f"{word}: {'; '.join(parts)} ({where})"


def cost(experiment: Experiment, small: bool = False) -> str:
    counted = costs.of(experiment, small)
    if counted is None:
        return "seconds on a CPU" if not any(row.train for row in experiment.chosen(small)) else "cost not recorded"
    return f"{counted.pflop:.2g} PFLOP, {counted.gib:.2g} GiB"


def published(row: Row) -> str:
    return ", ".join(f"{NAMES.get(name, name)} {value:g}" for name, value in row.paper.items())


def everything() -> str:
    """One line per experiment: its state and cost."""
    lines = []
    for paper, title in PAPERS.items():
        lines += ["", title]
        for e in experiments().values():
            if e.paper == paper:
                lines += [f"  {e.name:<13} {e.title}", f"  {'':<13} {state(e)}; {cost(e)}"]
    return "\n".join([*lines[1:], "", "'eblvm reproduce NAME' shows its commands and the paper's figures;",
                      "'eblvm reproduce NAME --out DIR' runs it."])  # fmt: skip


def one(experiment: Experiment, commands: dict[str, list[str]], small: bool) -> str:
    """An experiment in full: state, cost, the paper's figures, the commands."""
    lines = [f"{experiment.name}: {experiment.title}", f"state: {state(experiment)}"]
    lines += [f"cost: {cost(experiment, small)} ({'CPU' if experiment.needs == 'cpu' or small else 'GPU'})"]
    lines += textwrap.wrap(f"paper: {experiment.says}", 110, subsequent_indent="  ") if experiment.says else []
    lines += [f"data: {experiment.data}"] if experiment.data else []
    for row in experiment.chosen(small):
        lines += ["", f"{row.label}" + (f"   paper: {published(row)}" if row.paper else "")]
        lines += [f"  {command}" for command in commands[row.label]]
    return "\n".join(lines)


def compared(facts: dict[str, Any]) -> tuple[list[str], list[list[Any]]]:
    """Header and rows of a table: every row's figures, the paper's, ours with deviation and range over seeds."""
    by_label = {row["label"]: row for row in facts["rows"]}
    lines = []
    for row in facts["rows"]:
        for name, mean in row["mean"].items():
            deviation = row["deviation"].get(name, 0.0)
            ours = (
                f"{mean:.6g}" + (f" +- {deviation:.2g}" if facts["seeds"] > 1 else "")
                if is_known(mean)
                else "not known"
            )
            shown, other = None, row["paper"].get(name)
            if other is not None:
                shown = f"{other:g}"
            elif row["beside"] and name == next(iter(row["mean"])):
                shown, other = f"as {row['beside']}", by_label[row["beside"]]["mean"][name]
            difference = f"{mean - other:+.4g}" if is_known(mean) and is_known(other) else None
            by_seed = [figures[name] for figures in row.get("by_seed", ()) if is_known(figures.get(name))]
            extent = f"{min(by_seed):.4g} to {max(by_seed):.4g}" if len(by_seed) > 1 else None
            lines.append([row["label"], NAMES.get(name, name), shown, ours, difference, extent])
    header = ["run", "figure", "paper", "ours", "difference", "by seed"]
    count = len(header) if facts["seeds"] > 1 else len(header) - 1
    return header[:count], [line[:count] for line in lines]


def is_known(value: Any) -> bool:
    """Is it a number? An evaluation that cannot know a figure gives a sentence that says why."""
    return isinstance(value, int | float)


def side_by_side(facts: dict[str, Any]) -> str:
    """The table, and the reason for each figure that is not known."""
    reasons = [
        f"{row['label']}, {NAMES.get(name, name)}: {mean}"
        for row in facts["rows"]
        for name, mean in row["mean"].items()
        if not is_known(mean)
    ]
    return "\n".join([tables.text(*compared(facts)), *reasons])
