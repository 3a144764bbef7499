"""Launches and memory traffic of the Triton kernels at Frey face's sizes, next to the unfused path.

`eblvm bench traffic` counts them in triton's interpreter (no GPU, no times) and
writes the record that docs/performance.md shows. The unfused path is torch's products with a kernel after each.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

from eblvm.bench.tools import columns
from eblvm.bench.tools.columns import Table

SCHEMA = "eblvm-traffic-1"
COLUMNS = {
    "op": "op",
    "launches": "launches",
    "unfused_launches": "unfused",
    "mib": "MiB",
    "unfused_mib": "unfused MiB",
    "traffic_ratio": "of it",
}
B, D, H, M, SWEEPS = 100, 560, 400, 1, 2
STEPS = 5  # K and N, as the recipe has them


class Case(NamedTuple):
    op: str
    fused: Callable[[], object]
    unfused: Callable[[], object]


def cases() -> list[Case]:
    import torch

    from eblvm.kernels.adam_unroll import Rule, triton_lists
    from eblvm.kernels.bernoulli_lower import triton as lower
    from eblvm.kernels.gibbs import triton as gibbs
    from eblvm.kernels.gibbs import triton_wide as gibbs_wide
    from eblvm.kernels.grbm import triton, triton_wide
    from eblvm.kernels.grbm_bilevel import Phi, Settings, Theta, reference
    from eblvm.kernels.grbm_bilevel import triton as bilevel
    from eblvm.kernels.grbm_dsm import triton as dsm
    from eblvm.kernels.grbm_dsm import triton_wide as dsm_wide
    from eblvm.kernels.sliced_hvp import triton as sliced
    from eblvm.kernels.sliced_hvp import triton_wide as sliced_wide

    generator = torch.Generator().manual_seed(0)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator)

    v, eps, r, h, u = normal(B, D), normal(B, D), normal(B, D), normal(B, H), normal(M, B, D)
    g, k = normal(B), normal(M, B)
    theta = (normal(D, H) / D**0.5, normal(D), normal(H), 0.1 * normal(D))
    mean, score = triton_wide.value(v, *theta, None)[2], triton_wide.value(v, *theta, h)[1]
    kept = sliced_wide.value(v, u, *theta)[2:]
    chains = (v, *theta, [], [], torch.tensor(3), 0, 1, 2, 0, SWEEPS)
    # The unfused bi-level step is torch's products with the Triton kernels of the two ops it is made of.
    reference.lower_backend, reference.lists_backend = lambda _: lower, lambda _: triton_lists
    moments = (normal(H, D), normal(H), normal(H, D).square(), normal(H).square(), torch.tensor(4.0))
    phi, rate = Phi(normal(H, D) / D**0.5, normal(H), *moments), torch.tensor(0.01)

    def step(where: Any, sgd: bool) -> Callable[[], object]:
        noise = ([eps], [h]) if sgd else (list(normal(2 * STEPS + 1, B, D)), list(normal(2 * STEPS + 1, B, H)))
        settings = Settings(K=STEPS, N=STEPS, sigma=0.3, tau=0.1, exact=sgd, sgd=sgd, auto_rate=False, rule=Rule())
        return lambda: where.grbm_bilevel(v, *noise, Theta(*theta), phi, rate, rate, settings)

    return [
        Case("grbm F(v), score", lambda: triton.value(v, *theta, None), lambda: triton_wide.value(v, *theta, None)),
        Case("grbm E(v, h), score", lambda: triton.value(v, *theta, h), lambda: triton_wide.value(v, *theta, h)),
        Case(
            "grbm first order",
            lambda: triton.first(g, r, mean, v, *theta, None, False, False),
            lambda: triton_wide.first(g, r, mean, v, *theta, None, False, False),
        ),
        Case(
            "grbm first order, v too",
            lambda: triton.first(g, r, mean, v, *theta, None, True, False),
            lambda: triton_wide.first(g, r, mean, v, *theta, None, True, False),
        ),
        Case(
            "grbm first order at h",
            lambda: triton.first(g, r, score, v, *theta, h, True, True),
            lambda: triton_wide.first(g, r, score, v, *theta, h, True, True),
        ),
        Case(
            "grbm_dsm", lambda: dsm.grbm_dsm(v, eps, *theta, 0.3), lambda: dsm_wide.grbm_dsm(v, eps, *theta, 0.3)
        ),
        Case(
            f"sliced_hvp, M={M}", lambda: sliced.value(v, u, *theta), lambda: sliced_wide.value(v, u, *theta)
        ),
        Case(
            f"sliced_hvp first order, M={M}",
            lambda: sliced.first(g, k, *kept, v, u, *theta, False, False),
            lambda: sliced_wide.first(g, k, *kept, v, u, *theta, False, False),
        ),
        Case(f"gibbs, {SWEEPS} sweeps", lambda: gibbs.gibbs(*chains), lambda: gibbs_wide.gibbs(*chains)),
        Case(f"grbm_bilevel, sampled KL, Adam, K=N={STEPS}", step(bilevel, False), step(reference, False)),
        Case(f"grbm_bilevel, exact KL, dual SGD, K=N={STEPS}", step(bilevel, True), step(reference, True)),
    ]  # fmt: skip


def large(t: Any) -> Any:
    """The tiles of a launch at the sizes that the interpreter runs fastest; its split into parts stays."""
    return t._replace(BM=128, BH=512, BK=t.BD)


def rows() -> list[dict[str, Any]]:
    """Count every case in this process, which must run under TRITON_INTERPRET=1."""
    from eblvm.bench.tools.memory import mib
    from eblvm.bench.tools.traffic import count
    from eblvm.kernels.grbm_bilevel import triton as bilevel
    from eblvm.kernels.runtime import tiles

    # The size of a tile changes no address that a launch touches, only how often, and how long the interpreter takes.
    ranked = tiles.ranked
    tiles.ranked = lambda *problem: tuple(large(t) for t in ranked(*problem)[:1])  # type: ignore[assignment]
    bilevel.BM, bilevel.BH = 128, 512
    bilevel.blocks_of_d = lambda precision, element: {"BD": 128, "BK": 128}  # type: ignore[assignment]
    counted = []
    for case in cases():
        fused, unfused = count(case.fused), count(case.unfused)
        counted.append(
            {
                "op": case.op,
                "launches": fused.launches,
                "unfused_launches": unfused.launches,
                "mib": mib(fused.bytes),
                "unfused_mib": mib(unfused.bytes),
                "traffic_ratio": fused.bytes / unfused.bytes,
            }
        )
    return counted


def run() -> dict[str, Any]:
    """The record. The counting runs in a process of its own, as triton's interpreter is chosen when triton is
    imported."""
    from eblvm.bench.tools import record

    code = "import json; from eblvm.bench.measurements import traffic; print(json.dumps(traffic.rows()))"
    environment = os.environ | {"TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, check=True, capture_output=True, text=True)
    body = {"sizes": {"B": B, "D": D, "H": H, "M": M}, "rows": json.loads(done.stdout.splitlines()[-1])}
    return record.make(SCHEMA, "traffic", "eblvm bench traffic", "cpu", body)


def table(result: dict[str, Any]) -> Table:
    return columns.table(COLUMNS, result)
