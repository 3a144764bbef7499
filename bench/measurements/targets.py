"""`eblvm bench targets`: the bars of the CPU steps, measured twice.

A target is a ratio of two steps, the median of the rounds' ratios: a GRBM's (fresh, Adam) step over its matrix products
alone, ten replicas over one, VaGES over MDSM and over itself with fewer samples, MDSM over its convolutions alone.
Every group of steps has a process of its own. Readings of a deep step differ by more than samples cost: what they add
is also read with a network of two channels, which costs no time and leaves the rest of the step as it is.
"""

from collections.abc import Callable
from functools import partial
from multiprocessing import get_context
from typing import Any, NamedTuple

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from eblvm.bench.contestants.steps import CaseStep
from eblvm.bench.measurements import grbm_parts, growth_axes, vages
from eblvm.bench.measurements.deep import DeepStep
from eblvm.bench.tools import columns, record
from eblvm.bench.tools.columns import Table
from eblvm.bench.tools.floor import FloorStep
from eblvm.bench.tools.timing import Step, interleaved, median, ratio_by_round
from eblvm.engine.config import Config

SCHEMA = "eblvm-targets/1"
COLUMNS = {
    "target": "target", "ms": "ms", "beside_ms": "beside ms", "ratio": "ratio", "again": "again", "bar": "at most",
    "met": "met",
}  # fmt: skip
CONVOLUTIONS = (torch.ops.aten.convolution, torch.ops.aten.convolution_backward, torch.ops.aten.mm)


class Target(NamedTuple):
    name: str
    step: str  # of its group
    beside: str
    bar: float


class ConvolutionFloor:
    """The convolutions of a step, and the matrix products that replace some of them, on the operands that they had."""

    def __init__(self, step: Step):
        self.calls: list[tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]] = []
        with Recorder(self.calls):
            step()

    @torch.no_grad()
    def __call__(self) -> None:
        for function, arguments, named in self.calls:
            function(*arguments, **named)


class Recorder(TorchDispatchMode):
    """Keeps the calls of convolutions, with copies of their operands: some are moved in place afterwards."""

    def __init__(self, calls: list[Any]):
        super().__init__()
        self.calls = calls

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func._overloadpacket in CONVOLUTIONS:
            copied = [a.detach().clone() if isinstance(a, torch.Tensor) else a for a in args]
            self.calls.append((func, tuple(copied), kwargs or {}))
        return func(*args, **(kwargs or {}))


def grbm(N: int, _: Config | None) -> tuple[dict[str, Step], list[Target]]:
    case = grbm_parts.case(N)
    target = Target(f"GRBM, fresh noise, Adam, N={N}: step over its products", "step", "products", 1.2)
    return {"step": CaseStep(case), "products": FloorStep(case)}, [target]


def replicas(_: Config | None) -> tuple[dict[str, Step], list[Target]]:
    steps: dict[str, Step] = {str(count): CaseStep(growth_axes.toy(count)) for count in (1, 10)}
    return steps, [Target("checkerboard: ten replicas over one", "10", "1", 1.6)]


def deep(base: Config | None) -> tuple[dict[str, Step], list[Target]]:
    """Steps at the width of the published CIFAR-10 model, batch 8."""
    steps: dict[str, Step] = dict(
        zip(("MDSM", "L=2", "L=10"), (DeepStep(case.config) for case in vages.deep_cases(base)), strict=True)
    )
    steps["convolutions"] = ConvolutionFloor(steps["MDSM"])
    return steps, [
        Target("VaGES over MDSM, L=2", "L=2", "MDSM", 1.19),
        Target("VaGES, L=10 over L=2", "L=10", "L=2", 1.02),
        Target("MDSM over its convolutions", "MDSM", "convolutions", 1.25),
    ]


def samples_add_ms(rounds: int, base: Config | None) -> float:
    """The extra time of L=10 over L=2 with a network of two channels; everything that L enters has its own sizes."""
    _, few, many = (DeepStep(case.config.replaced(width=2)) for case in vages.deep_cases(base))
    ((few_ms, many_ms),) = interleaved([[few, many]], rounds, "cpu")
    return median([b - a for a, b in zip(few_ms, many_ms, strict=True)])


GROUPS: tuple[tuple[bool, Callable[[Config | None], tuple[dict[str, Step], list[Target]]]], ...] = (
    *((False, partial(grbm, N)) for N in (0, 5, 10)),
    (False, replicas),
    (True, deep),
)


def rows_of(group: int, rounds: int, base: Config | None) -> list[dict[str, Any]]:
    """Measure a group's targets once, on fresh steps."""
    torch.set_num_threads(1)
    long, make = GROUPS[group]
    steps, targets = make(base)
    (readings,) = interleaved([list(steps.values())], rounds, "cpu", long=long)
    times_of = dict(zip(steps, readings, strict=True))
    rows = []
    for name, step, beside, bar in targets:
        times = {"ms": median(times_of[step]), "beside_ms": median(times_of[beside])}
        rows.append({"target": name, **times, "ratio": ratio_by_round(times_of[step], times_of[beside]), "bar": bar})
    return rows


def in_a_process(*arguments: Any) -> list[dict[str, Any]]:
    """`rows_of` in a fresh process: a deep step's times differ by a tenth if others have used the heap before it."""
    with get_context("spawn").Pool(1) as pool:
        return pool.apply(rows_of, arguments)


def run(
    rounds: int, base: Config | None = None, of_group: Callable[..., list[dict[str, Any]]] = in_a_process
) -> dict[str, Any]:
    """The record of two measurements; a target is met if both are within its bar."""
    torch.set_num_threads(1)
    first, second = ([row for g in range(len(GROUPS)) for row in of_group(g, rounds, base)] for _ in range(2))
    rows = [
        row | {"again": again["ratio"], "met": max(row["ratio"], again["ratio"]) <= row["bar"]}
        for row, again in zip(first, second, strict=True)
    ]
    command = f"eblvm bench targets --rounds {rounds}"
    body = {"rounds": rounds, "rows": rows, "samples_add_ms": samples_add_ms(rounds, base)}
    return record.make(SCHEMA, "targets", command, "cpu", body)


def table(result: dict[str, Any]) -> Table:
    return columns.table(COLUMNS, {"rows": [row | {"met": "yes" if row["met"] else "no"} for row in result["rows"]]})
