"""Every tile that the tuner may take compiles as at a launch, without a spill, with tensor cores where it should.

The tuner times the first of `ranked`; which these are is the model's choice, over a grid of problems.
"""

import os
import re
import subprocess
import tempfile
from itertools import product
from pathlib import Path

import pytest

pytest.importorskip("triton")

import triton

from eblvm.kernels.grbm.triton import BYTES, KINDS, fused_variant, products_of
from eblvm.kernels.grbm.triton_rows import FREE, GIVEN, PULL, RESIDUAL, SLICED
from eblvm.kernels.runtime import tiles, triton_report, tuning
from eblvm.kernels.runtime.tiles import Problem, Tiles

BATCHES = (1, 4, 16, 25, 64, 100, 256, 1024)
UNITS = (2, 16, 64, 100, 257, 560, 784, 1024, 2048, 4096)
RESULTS = {"rows": (FREE, GIVEN, RESIDUAL, SLICED, PULL), "columns": (FREE, GIVEN, RESIDUAL, SLICED)}
M, SIGMA = 4, 0.3


def variant(kind: int, element: str, problem: Problem, t: Tiles):
    directions = M if kind == SLICED.value else 0
    sigma = SIGMA if kind == RESIDUAL.value else 0.0
    label = f"{problem.plan} {kind} {element} {problem.precision} {tuple(t)} D={problem.D} H={problem.H}"
    return fused_variant(label, kind, element, problem, t, directions, sigma)


def codes(plan: tiles.Plan, kind: int, element: str, precision: str, capability: int) -> list[tuple[Problem, Tiles]]:
    """One problem for every code that the tuner may compile: sizes change the counts of its loops, and what is unrolled
    or begins at a multiple of 16 changes the code."""
    found: dict[tuple, tuple[Problem, Tiles]] = {}
    products = products_of(plan, kind, M if kind == SLICED.value else 0)
    for batch, D, H in product(BATCHES, UNITS, UNITS):
        if not tiles.fits(D, BYTES[element]):
            continue
        problem = Problem(plan, batch, D, H, 1, BYTES[element], products, precision, capability)
        for t in tiles.ranked(problem)[: tuning.TIMED]:
            chunks = -(-D // t.BD) if plan == "rows" else 0
            found.setdefault((t._replace(split=min(t.split, 2)), chunks, D % 16 == 0), (problem, t))
    return list(found.values())


def all_codes():
    """Of the free energy every code, in float64 also without its tensor cores; of the other results the largest."""
    for (element, precision), plan in product(KINDS, RESULTS):
        for capability in (80, 100) if element == "fp64" else (80,):
            for problem, t in codes(plan, FREE.value, element, precision, capability):
                yield variant(FREE.value, element, problem, t), capability
    yield from largest_codes(RESULTS)


def largest_codes(results):
    """Of every result and precision: the tiles with the most registers in sums, whole and split, and for odd rows."""
    for (element, precision), (plan, kinds) in product(KINDS, results.items()):
        capability = 100 if element == "fp64" else 80
        for kind in kinds:
            pairs = codes(plan, kind.value, element, precision, capability)
            pairs.sort(key=lambda pair: pair[1].BM * pair[1].BH * pair[1].each * pair[1].BD / pair[1].warps)
            for of_kind in (
                [pair for pair in pairs if pair[1].split == 1],
                [pair for pair in pairs if pair[1].split > 1],
                [pair for pair in pairs if pair[0].D % 16],
            ):
                yield variant(kind.value, element, *of_kind[-1]), capability


EVERY = os.environ.get("EBLVM_ALL_KERNELS") == "1"
CODES = all_codes() if EVERY else largest_codes({"rows": (FREE,), "columns": (FREE,)})
CODES = list({(v.name, capability): (v, capability) for v, capability in CODES}.values())


@pytest.mark.parametrize(("variant", "capability"), CODES, ids=lambda value: getattr(value, "name", value))
def test_a_tile_compiles_without_spills(variant, capability) -> None:
    row = triton_report.compiled(variant, capability)
    assert row.spill_bytes == 0
    assert row.shared_bytes <= triton_report.LIMITS[capability].shared_kib_per_block * 1024


@pytest.mark.parametrize(("element", "precision"), [("fp32", "ieee"), ("fp32", "tf32"), ("bf16", "ieee")])
def test_the_energy_of_given_h_fits_where_shared_memory_is_scarce(element, precision) -> None:
    products, capability = products_of("rows", GIVEN.value, 0), 86
    problem = Problem("rows", 100, 1024, 400, 1, BYTES[element], products, precision, capability)
    sizes = (variant(GIVEN.value, element, problem, t) for t in tiles.ranked(problem)[: tuning.TIMED])
    limit = triton_report.LIMITS[capability].shared_kib_per_block * 1024
    assert any(triton_report.compiled(v, capability).shared_bytes <= limit for v in sizes)


def sass(variant, capability: int) -> str:
    """The machine code, by the disassembler of Triton's wheel."""
    tool = Path(triton.__file__).parent / "backends/nvidia/bin/nvdisasm"
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "kernel.cubin"
        path.write_bytes(triton_report.built(variant, capability).asm["cubin"])
        return subprocess.run([tool, "-c", path], check=True, capture_output=True, text=True).stdout


def instructions(code: str) -> list[str]:
    """The names of the instructions, and `label:` and `-> label` of jumps, in their order."""
    names = []
    for line in code.splitlines():
        if label := re.match(r"^(\.L_\w+):", line):
            names.append(f"{label[1]}:")
        elif jump := re.search(r"\bBRA\b.*`\((\.L_\w+)\)", line):
            names.append(f"-> {jump[1]}")
        elif step := re.match(r"^\s+/\*[0-9a-f]+\*/\s+(?:@!?U?P\w+\s+)?([A-Z][A-Z0-9_]*)", line):
            names.append(step[1])
    return names


def loops(names: list[str]) -> list[list[str]]:
    """The instructions between a label and a later jump back to it."""
    places = {name[:-1]: at for at, name in enumerate(names) if name.endswith(":")}
    jumps = [(places.get(name[3:], at), at) for at, name in enumerate(names) if name.startswith("-> ")]
    return [names[begin:end] for begin, end in jumps if begin < end]


CORES = {"tf32": {"HMMA", "HGMMA"}, "bf16x3": {"HMMA", "HGMMA"}, "bf16": {"HMMA", "HGMMA"}, "fp64": {"DMMA"}}


@pytest.mark.parametrize("capability", [80, 90])
@pytest.mark.parametrize("plan", RESULTS)
@pytest.mark.parametrize(("element", "precision"), KINDS, ids=lambda value: value)
def test_machine_code_of_hot_loops(element, precision, plan, capability) -> None:
    D = min(560, tiles.MOST_VISIBLE[BYTES[element]])
    problem = Problem(plan, 100, D, 400, 1, BYTES[element], products_of(plan, FREE.value, 0), precision, capability)
    names = instructions(sass(variant(FREE.value, element, problem, tiles.ranked(problem)[0]), capability))
    inside = {name for loop in loops(names) for name in loop}
    assert "LDG" in inside or "LDGSTS" in inside  # these are the loops over blocks of W or of samples
    assert not inside & {"LDL", "STL"}
    # float32 that keeps all bits of its factors (ieee) has no tensor cores to use.
    assert inside & CORES.get(precision, CORES.get(element, {"FFMA"}))
