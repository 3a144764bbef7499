"""`eblvm bench vages`: VaGES for any number of samples at the price of MDSM, and on a GRBM.

Two groups of contestants, each interleaved: the deep EBLVM at the width of the published CIFAR-10 model, K = C = 5, and
the GRBM at Frey face's sizes, K = 5, next to BiDSM. The naive procedure is the formula, one gradient for every sample.
"""

import sys
from typing import Any

import torch
from tqdm import tqdm

from eblvm.bench.contestants import steps as contestants
from eblvm.bench.measurements import deep
from eblvm.bench.tools import agreement, columns, record
from eblvm.bench.tools.memory import mib
from eblvm.bench.tools.registry import Case
from eblvm.bench.tools.timing import Step, interleaved, median, ratio_by_round
from eblvm.engine import tables
from eblvm.engine.config import Config
from eblvm.engine.planning.footprint import footprint
from eblvm.engine.recipes import recipe

COLUMNS = ("case", "ms", "to_mdsm", "naive_ms", "ratio", "held_mib", "held_published_mib", "peak_mib")
SCHEMA = "eblvm-bench-vages/1"


def deep_cases(base: Config | None = None) -> list[Case]:
    base = base or recipe("cifar10").replaced(batch=deep.BATCH)
    chosen = [deep.named("method=mdsm", base.replaced(method="mdsm"))]
    for L in (2, 10):
        config = base.replaced(method="vages-mdsm", L=L, K=5, C=5)
        chosen.append(deep.named(f"method=vages-mdsm L={L} K=5 C=5", config, naive=L == 2))
    return chosen


def grbm_cases(base: Config | None = None, visible: int = 560) -> list[Case]:
    """VaGES in the engine's default semantics and in those of the papers, then BiDSM in the latter."""
    base = (base or recipe("freyface")).replaced(K=5)
    papers = base.replaced(noise="fresh", divergence="kl")
    vages = [Case(c.replaced(method="vages-dsm"), (visible,)) for c in (base, papers)]
    return [*vages, *(Case(papers.replaced(method="bidsm", N=N), (visible,)) for N in (0, 1, 5, 10))]


def run(
    rounds: int,
    progress: bool = True,
    images: list[Case] | None = None,
    flat: list[Case] | None = None,
    device: str = "cpu",
) -> dict[str, Any]:
    """The record of the suite. Raises `AgreementError` before anything is timed if a gradient is wrong."""
    torch.set_num_threads(1)
    images, flat = images or deep_cases(), flat or grbm_cases()
    deep.difference(deep.SMALL.replaced(method="vages-mdsm", L=3, K=2, C=2))
    for case in flat:
        agreement.check(case)
    images, flat = deep.on_device(images, device), deep.on_device(flat, device)
    networks = [deep.DeepStep(case.config) for case in images]
    by_formula = [deep.NaiveStep(case.config, deep.SHAPE) for case in images if case.naive]
    grbms, published = [contestants.CaseStep(case) for case in flat], contestants.published(flat[0])
    groups: list[list[Step]] = [[*networks, *by_formula], [*grbms, contestants.NaiveStep(published)]]
    with tqdm(total=rounds, desc="vages", disable=None if progress else True, file=sys.stderr, leave=False) as bar:
        readings = interleaved(groups, rounds, device, bar.update, long=True)
    network_ms, grbm_ms = ([median(r) for r in group] for group in readings)
    rows = []
    slower = iter(network_ms[len(images) :])
    for i, (case, network) in enumerate(zip(images, networks, strict=True)):
        naive_ms = next(slower) if case.naive else None
        to_mdsm = ratio_by_round(readings[0][i], readings[0][0])
        rows.append(deep.row(case, network, network_ms[i], to_mdsm, naive_ms) | {"peak_mib": None})
    for one, engine, ms in zip(flat, grbms, grbm_ms, strict=False):
        by_formula_ms = grbm_ms[-1] if one.config["method"] == "vages-dsm" else None
        counted = footprint(engine, engine.inputs)
        rows.append(
            dict.fromkeys(COLUMNS)
            | {
                "case": f"{one.name} D={one.visible} H={one.config.model.latent}",
                "ms": ms,
                "naive_ms": by_formula_ms,
                "ratio": None if by_formula_ms is None else by_formula_ms / ms,
                "held_mib": mib(counted.saved_bytes),
                "peak_mib": mib(counted.peak_bytes),
            }
        )
    command = f"eblvm bench vages --rounds {rounds}" + deep.on_flag(device)
    return record.make(SCHEMA, "vages", command, device, {"rounds": rounds, "rows": rows})


def format_table(result: dict[str, Any]) -> str:
    return tables.text(*columns.table(COLUMNS, result))
