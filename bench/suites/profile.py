"""`eblvm profile`: time and memory of one training step over the whole N x K surface, as table, record and plot."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from tqdm import tqdm

from eblvm.bench.contestants.steps import CaseStep
from eblvm.bench.tools import record
from eblvm.bench.tools.registry import Case
from eblvm.bench.tools.timing import interleaved, median
from eblvm.engine import recipes, tables
from eblvm.engine.config import Config
from eblvm.engine.errors import UserError
from eblvm.engine.planning.footprint import footprint

SCHEMA = "eblvm-profile/1"
MIB = 2**20
FIGURES = ("step_ms", "saved_mib", "peak_mib")


def run(config: Config, Ns: Sequence[int], Ks: Sequence[int], rounds: int, progress: bool = True) -> dict[str, Any]:
    """The record: one row for each N and K, by `footprint` and interleaved readings of the same steps."""
    if config.get("N") is None or not config.model.fused_step:
        raise UserError(
            f"method {config.method.kind!r} has no N and K to profile; use bidsm, bissm or bimdsm on a GRBM"
        )
    if not Ns or not Ks or min(*Ns, *Ks, 0) < 0:
        raise UserError(f"got N={list(Ns)} K={list(Ks)}, expected lists of integers, 0 or more")
    if rounds < 1:
        raise UserError(f"got rounds={rounds}, expected 1 or more")
    torch.set_num_threads(config["threads"])
    points = [(N, K) for N in sorted(set(Ns)) for K in sorted(set(Ks))]
    steps = [CaseStep(Case(config.replaced(N=N, K=K), config.shape)) for N, K in points]
    total = len(points) * (rounds + 1)
    with tqdm(
        total=total, desc=f"profile {config.recipe}", disable=None if progress else True, file=sys.stderr, leave=False
    ) as bar:
        readings = interleaved([[step] for step in steps], rounds, config["device"], bar.update)
        rows = []
        for (N, K), step, (times,) in zip(points, steps, readings, strict=True):
            # Neither hooks nor dispatch modes see into compiled code.
            cost = None if config["compile"] else footprint(step, step.inputs, step.hooks)
            saved = None if cost is None or cost.saved_bytes is None else cost.saved_bytes / MIB
            peak = None if cost is None else cost.peak_bytes / MIB
            rows.append({"N": N, "K": K, "step_ms": median(times), "saved_mib": saved, "peak_mib": peak})
            bar.update()
    name = f"profile-{config.recipe}"
    what = {
        "method": config["method"],
        "noise": config.get("noise", "shared"),
        "unroll": config["unroll_optimizer"],
        "memory": config["unroll_memory"],
    }
    options = f"--N {','.join(map(str, Ns))} --K {','.join(map(str, Ks))} --rounds {rounds}"
    command = " ".join(
        [f"eblvm profile {config.recipe} {options}", *recipes.arguments(config, without=("N", "K", "data"))]
    )
    return record.make(SCHEMA, name, command, config["device"], {"recipe": config.recipe, **what, "rows": rows})


def surface(result: dict[str, Any], figure: str) -> tuple[list[int], list[int], list[list[float | None]]]:
    """(N values, K values, figure[N][K])."""
    values = {(row["N"], row["K"]): row[figure] for row in result["rows"]}
    Ns, Ks = sorted({N for N, _ in values}), sorted({K for _, K in values})
    return Ns, Ks, [[values[N, K] for K in Ks] for N in Ns]


def format_table(result: dict[str, Any]) -> str:
    return tables.text(
        ("N", "K", *FIGURES), [[row["N"], row["K"], *(row[f] for f in FIGURES)] for row in result["rows"]]
    )


def plot(result: dict[str, Any], path: Path) -> None:
    """Heat maps of time and peak memory over N and K, and the two cuts of BiSM's Table 3: time over N and over K."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 8), layout="constrained")
    FigureCanvasAgg(figure)
    (time_axes, memory_axes), (over_N, over_K) = figure.subplots(2, 2)
    title = f"{result['recipe']}: {result['method']}, {result['noise']} noise, {result['unroll']} unroll"
    where = result["machine"].get("gpu", result["machine"]["cpu"])
    figure.suptitle(f"One training step of {title}\n{where}, torch {result['versions']['torch']}", fontsize=11)
    heat_map(time_axes, result, "step_ms", "time a step [ms]")
    heat_map(memory_axes, result, "peak_mib", "peak memory beyond the step's inputs [MiB]")

    Ns, Ks, ms = surface(result, "step_ms")
    n, k = near(Ns, 5), near(Ks, 5)
    over_N.plot(Ns, [row[k] for row in ms], "o-")
    over_N.set(xlabel="N, unrolled steps", ylabel="ms a step", title=f"time over N at K={Ks[k]}", xticks=Ns)
    over_K.plot(Ks, ms[n], "o-")
    over_K.set(xlabel="K, real lower steps", ylabel="ms a step", title=f"time over K at N={Ns[n]}", xticks=Ks)
    for axes in (over_N, over_K):
        axes.set_ylim(bottom=0, top=1.1 * max(value or 0 for row in ms for value in row))
        axes.grid(alpha=0.3)
        axes.spines[["top", "right"]].set_visible(False)
    try:
        figure.savefig(path, dpi=120)
    except (OSError, ValueError) as error:
        raise UserError(f"cannot write the plot {path} ({error}); give --plot a .png, .pdf or .svg file") from None


def near(values: list[int], wanted: int) -> int:
    """The place of the value nearest to the paper's."""
    return min(range(len(values)), key=lambda i: abs(values[i] - wanted))


def heat_map(axes: Any, result: dict[str, Any], figure: str, title: str) -> None:
    Ns, Ks, values = surface(result, figure)
    numbers = [[float("nan") if value is None else value for value in row] for row in values]
    highest = max((value for row in values for value in row if value is not None), default=1.0)
    axes.imshow(numbers, cmap="Blues", vmin=0, vmax=1.15 * highest, origin="lower", aspect="auto")
    axes.set(title=title, xlabel="K, real lower steps", ylabel="N, unrolled steps")
    axes.set_xticks(range(len(Ks)), Ks)
    axes.set_yticks(range(len(Ns)), Ns)
    for i, row in enumerate(values):
        for j, value in enumerate(row):
            dark = value is not None and value > 0.65 * highest
            axes.text(j, i, tables.cell(value), ha="center", va="center", color="white" if dark else "black")
