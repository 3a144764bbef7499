"""`python -m eblvm.bench.suites.grbm_parts ROUNDS [--json FILE]`: what stands between a GRBM's step and its floor.

The parts of the (fresh, Adam) step at Frey face's sizes, each timed alone by turns with the whole: its matrix products
(`bench/tools/floor.py`), its noise, the moves of A by Adam, their reverse, theta's move. The rest is what no part has:
the pointwise loops over h and over residuals, the sums, the calls. And of the checkerboard's step, for one replica and
for ten: the fused gradient, and the noise.
"""

from collections.abc import Callable
from typing import Any

import torch

from eblvm.bench.contestants.steps import CaseStep
from eblvm.bench.suites.growth import toy
from eblvm.bench.tools import record, script
from eblvm.bench.tools.floor import FloorStep
from eblvm.bench.tools.registry import SEMANTICS, Case
from eblvm.bench.tools.timing import interleaved, median, ratio_by_round
from eblvm.engine.recipes import recipe
from eblvm.kernels.adam_unroll import adam_unroll_
from eblvm.kernels.adam_unroll.reference import Rule

SCHEMA = "eblvm-grbm-parts/2"
COLUMNS = {"step": "step", "part": "part", "ms": "ms", "of_the_step": "of the step"}
VISIBLE = 560


def case(N: int) -> Case:
    """As published: fresh noise, a sampled KL, unrolled steps of Adam."""
    return Case(recipe("freyface", method="bidsm").replaced(**SEMANTICS[0], N=N, K=5), (VISIBLE,))


def parts_of(case: Case) -> dict[str, Callable[[], object]]:
    """The step, and its parts by name."""
    c = case.config
    step, N, K = CaseStep(case), c["N"], c["K"]
    A_shape, theta = (c["latent"], case.visible), list(step.state.theta.params.values())
    p, g, m, v = ([torch.rand(A_shape)] for _ in range(4))
    bars = [torch.rand(A_shape) for _ in range(3)]
    theta_like = [[torch.rand_like(t) for t in theta] for _ in range(4)]
    count, lr, rule = torch.ones(()), torch.tensor(1e-3), Rule()

    def moves() -> None:
        for _ in range(K + N):
            adam_unroll_(p, g, m, v, count, lr, rule)

    def reverse() -> None:
        for _ in range(N):
            torch.ops.eblvm.adam_unroll_reverse(*bars, g[0], m[0], v[0], count, lr, *rule)

    parts: dict[str, Callable[[], object]] = {
        "the step": step,
        "matrix products": FloorStep(case),
        "noise": step.noise,
        "A's moves": moves,
    }
    if N:
        parts["reverse of N moves"] = reverse
    return parts | {"theta's move": lambda: adam_unroll_(*theta_like, count, lr, rule)}


def parts_of_toy(replicas: int) -> dict[str, Callable[[], object]]:
    """What of the step grows with replicas: beside it are Python's calls and theta's few numbers."""
    step = CaseStep(toy(replicas))
    noise = step.noise()
    return {"the step": step, "fused gradient": lambda: step.fused_gradient(noise), "noise": step.noise}


def run(rounds: int) -> dict[str, Any]:
    torch.set_num_threads(1)
    steps = {f"Frey face, N={N}": parts_of(case(N)) for N in (0, 5, 10)}
    steps |= {f"checkerboard, replicas: {count}": parts_of_toy(count) for count in (1, 10)}
    rows = []
    for name, parts in steps.items():
        (readings,) = interleaved([list(parts.values())], rounds, "cpu")
        found = [
            {"step": name, "part": part, "ms": median(ms), "of_the_step": 1 / ratio_by_round(readings[0], ms)}
            for part, ms in zip(parts, readings, strict=True)
        ]
        rest = 2 - sum(row["of_the_step"] for row in found)
        rows += [*found, {"step": name, "part": "the rest", "ms": rest * found[0]["ms"], "of_the_step": rest}]
    command = f"python -m eblvm.bench.suites.grbm_parts {rounds}"
    return record.make(SCHEMA, "parts-grbm", command, "cpu", {"rounds": rounds, "rows": rows})


def table(result: dict[str, Any]) -> tuple[list[str], list[list[Any]]]:
    return list(COLUMNS.values()), [[row[name] for name in COLUMNS] for row in result["rows"]]


if __name__ == "__main__":
    script.main(__doc__, run, table)
