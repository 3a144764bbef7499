"""`eblvm profile`: time, memory and FLOPs of one training step over N and K, or over L, K and C, of any recipe.

A point is one configuration. Its values on the axes (N, K, L, C) are numbers; what is compared with each other, a
Newton step next to N, networks, checkpointing, precisions, are series. All points are read in turn, on a batch that
fits; saved bytes and the peak at the recipe's own batch are counted on the meta device.
"""

import itertools
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch.utils._pytree import tree_leaves
from tqdm import tqdm

from eblvm.bench.contestants.steps import CaseStep
from eblvm.bench.tools import record
from eblvm.bench.tools.memory import mib
from eblvm.bench.tools.registry import Case
from eblvm.bench.tools.timing import interleaved, median
from eblvm.engine import recipes, tables
from eblvm.engine.config import Config
from eblvm.engine.errors import UserError
from eblvm.engine.machine import device_memory
from eblvm.engine.methods.base import State
from eblvm.engine.methods.score_matching import ScoreMatching
from eblvm.engine.planning import plan
from eblvm.engine.planning.footprint import footprint, held_bytes

SCHEMA = "eblvm-profile/2"
AXES: dict[str, Sequence[int]] = {"N": (0, 1, 5, 10), "K": (1, 2, 5, 10), "L": (2, 5, 10), "C": (0, 5)}
SAMPLED_K = (1, 5)  # where L and C are axes too
SERIES = ("best_response", "network", "checkpoint", "precision")
FIGURES = ("step_ms", "saved_mib", "peak_mib", "gflop", "ops", "recipe_saved_mib", "recipe_peak_mib")
LONG_MS = 100.0  # longer steps are read one by one, in fewer rounds
FLOP_LIMIT = 1e12  # per step on a CPU: some seconds


class Point(NamedTuple):
    config: Config
    axes: dict[str, int]
    series: str  # what tells it from other points with the same values on the axes; may be empty


def points(config: Config, given: Mapping[str, Sequence[Any]]) -> list[Point]:
    """Every configuration to measure. `given` has values of axes and series by name; the others use their defaults."""
    choices = {name: list(given[name]) for name in SERIES if name in given}
    if config.get("best_response") is not None and "best_response" not in choices:
        choices["best_response"] = ["unroll", "newton"] if newton_runs(config) else [config["best_response"]]
    listed = []
    for chosen in itertools.product(*choices.values()):
        one = config.replaced(**dict(zip(choices, chosen, strict=True)))
        read = {leaf.name for leaf in one.leaves()}
        axes = {name: values_of(name, given, read) for name in AXES if name in given or name in read}
        if one.get("best_response") == "newton":
            axes.pop("N", None)  # it replaces all N
        pairs = zip(choices, chosen, strict=True)
        series = " ".join(f"{name}={value}" for name, value in pairs if len(choices[name]) > 1)
        for values in itertools.product(*axes.values()):
            at = dict(zip(axes, values, strict=True))
            listed.append(Point(one.replaced(**at), at, series))
    return listed


def values_of(name: str, given: Mapping[str, Sequence[Any]], read: set[str]) -> list[int]:
    values = given.get(name) or (SAMPLED_K if name == "K" and "L" in read else AXES[name])
    low = 1 if name in ("K", "L") and name not in given else 0
    if min(values) < 0:
        raise UserError(f"got {name}={list(values)}, expected a list of integers, 0 or more")
    return sorted({max(low, value) for value in values})


def newton_runs(config: Config) -> bool:
    try:
        config.replaced(best_response="newton").check()
    except UserError:
        return False
    return True


def run(
    config: Config, given: Mapping[str, Sequence[Any]], rounds: int | None, batch: int | None, progress: bool = True
) -> dict[str, Any]:
    """The record: a row per point, by `footprint` and interleaved readings of the same steps."""
    if rounds is not None and rounds < 1:
        raise UserError(f"got rounds={rounds}, expected 1 or more")
    torch.set_num_threads(config["threads"])
    wanted = points(config, given)
    for point in wanted:
        point.config.check()
    planned = [recipe_cost(point.config) for point in wanted]
    size = batch or fitting_batch(config, planned)
    states: dict[Any, State] = {}
    steps = [step_of(point.config.replaced(batch=size), states) for point in wanted]
    first_ms = [first_call_ms(step) for step in steps]
    long = max(first_ms) > LONG_MS
    rounds = rounds or (3 if long else 9)
    if progress:
        say_duration(len(steps), rounds, sum(first_ms), size)
    with tqdm(
        total=len(steps) * (rounds + 1), desc=f"profile {config.recipe}", disable=None if progress else True,
        file=sys.stderr, leave=False,
    ) as bar:  # fmt: skip
        readings = interleaved([[step] for step in steps], rounds, config["device"], bar.update, long=long)
        rows = []
        for point, step, (times,), cost in zip(wanted, steps, readings, planned, strict=True):
            rows.append(point.axes | {"series": point.series} | figures(step, median(times), cost))
            bar.update()
    name = f"profile-{config.recipe}{'-small' if config.small else ''}-{config.method.kind}"
    command = command_of(config, given, rounds, batch)
    body = {
        "recipe": config.recipe, "method": config.method.kind, "model": config.model.kind, "batch": size,
        "recipe_batch": config.optimisation.batch, "rounds": rounds, "rows": rows,
    }  # fmt: skip
    return record.make(SCHEMA, name, command, config["device"], body)


def command_of(config: Config, given: Mapping[str, Sequence[Any]], rounds: int, batch: int | None) -> str:
    own = [f"--{name.replace('_', '-')} {','.join(map(str, values))}" for name, values in given.items()]
    flags = recipes.arguments(config, without=(*AXES, *SERIES, "data"))
    sizes = [f"--rounds {rounds}", *([f"--batch {batch}"] if batch else [])]
    return " ".join([f"eblvm profile {config.recipe}", *flags, *own, *sizes])


def recipe_cost(config: Config) -> plan.StepCost | None:
    """The step at the recipe's batch, counted on the meta device; None for small models and for methods without a
    plan."""
    if not config.model.images or not config.method.plans or config.replicated or config.step.compile:
        return None
    return plan.step_cost(config.replaced(device="cpu"), config.shape)


def fitting_batch(config: Config, planned: Sequence[plan.StepCost | None]) -> int:
    """The recipe's batch, halved until all points fit: in a third of the memory and, on a CPU, in a few seconds."""
    size, costs = config.optimisation.batch, [cost for cost in planned if cost is not None]
    memory = device_memory(config["device"]) / 3
    most_flops = FLOP_LIMIT if config["device"] == "cpu" else float("inf")
    total = max((cost.total_bytes for cost in costs), default=0)
    state = max((cost.state_bytes for cost in costs), default=0)
    flops = max((cost.flops for cost in costs), default=0)
    fraction = 1.0
    while size % 2 == 0 and size > 2 and ((total - state) * fraction + state > memory or flops * fraction > most_flops):
        size, fraction = size // 2, fraction / 2
    return size


def step_of(config: Config, states: dict[Any, State]) -> CaseStep:
    """A warm step. Points with the same networks use one state: only the cost of a step is read."""
    key = (config.get("network"), config.model.precision)
    step = CaseStep(Case(config, config.shape), states.get(key))
    states.setdefault(key, step.state)
    return step


def first_call_ms(step: CaseStep) -> float:
    begin = time.process_time()
    step()
    return 1e3 * (time.process_time() - begin)


def say_duration(count: int, rounds: int, once_ms: float, batch: int) -> None:
    seconds = once_ms / 1e3 * (rounds + 3)
    duration = f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"
    print(f"{count} points at batch {batch}, {rounds} rounds: about {duration}", file=sys.stderr)


def figures(step: CaseStep, ms: float, planned: plan.StepCost | None) -> dict[str, Any]:
    values: dict[str, Any] = dict.fromkeys(FIGURES) | {"step_ms": ms}
    if not step.config.step.compile:  # neither hooks nor dispatch modes see into compiled code
        deep = step.config.model.images and isinstance(step.method, ScoreMatching)
        cost = footprint(step, step.inputs, step.hooks and not deep)
        values |= {"peak_mib": mib(cost.peak_bytes), "gflop": cost.flops / 1e9, "ops": cost.ops}
        saved = cost.saved_bytes
        if deep and not step.config.replicated:  # its backward uses torch.func, which allows no hooks
            given = (step.state, step.v, step.noise(), step.rates)
            known = [t for t in tree_leaves(given) if isinstance(t, torch.Tensor)]
            saved = held_bytes(lambda: step.method.graph(step.nets, *given), known)
        values["saved_mib"] = mib(saved)
    if planned is not None:
        values |= {
            "recipe_saved_mib": mib(planned.saved_bytes),
            "recipe_peak_mib": mib(planned.total_bytes - planned.state_bytes),
        }
    return values


def axes_of(result: dict[str, Any]) -> list[str]:
    """The axes of a record, in order."""
    return [name for name in AXES if any(name in row for row in result["rows"])]


def surface(
    result: dict[str, Any], figure: str, rows: str, columns: str
) -> tuple[list[int], list[int], list[list[float | None]]]:
    """(values of the axis `rows`, of `columns`, figure[row][column]) of the first series, the other axes at their
    first values."""
    first = next(row for row in result["rows"] if rows in row and columns in row)
    fixed = {name: value for name, value in first.items() if name in (*AXES, "series") and name not in (rows, columns)}
    values = {
        (row[rows], row[columns]): row[figure]
        for row in result["rows"]
        if rows in row and columns in row and all(row.get(name) == value for name, value in fixed.items())
    }
    ys, xs = sorted({y for y, _ in values}), sorted({x for _, x in values})
    return ys, xs, [[values[y, x] for x in xs] for y in ys]


def format_table(result: dict[str, Any]) -> str:
    axes = axes_of(result)
    series = ["series"] if any(row["series"] for row in result["rows"]) else []
    shown = [figure for figure in FIGURES if any(row[figure] is not None for row in result["rows"])]
    header = [*series, *axes, *shown]
    head = f"{result['recipe']}: {result['method']} on {result['model']}, batch {result['batch']}"
    if "ops" in shown:
        head += "; ops: operators called, of which each is a launch or more on a GPU"
    if "recipe_peak_mib" in shown:
        head += f"; recipe_*: counted at the recipe's batch of {result['recipe_batch']}"
    return head + "\n" + tables.text(header, [[row.get(name) for name in header] for row in result["rows"]])
