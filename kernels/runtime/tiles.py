"""Tiles of the kernels with a product inside, ranked by a model of occupancy and traffic; `tuning.py` times the best.

Two plans, both flash attention's. `rows`: a program keeps BM samples and all D columns of their result, blocks of BH
columns of W stream past. `columns`: a program keeps BH columns of W's gradient, EACH blocks of their rows, and samples
stream past. Where programs are few the streamed axis is split; the last program of a block adds the parts in order.
"""

from functools import cache
from itertools import product
from typing import Literal, NamedTuple

import torch

Plan = Literal["rows", "columns"]
# Multiply-adds of one multiprocessor per clock: CUDA C++ programming guide, "arithmetic instructions", of cc 8.0.
RATES = {"ieee": 64, "tf32": 512, "bf16x3": 340, "half": 1024, "double": 32}
L2_BYTES_PER_CLOCK = 64  # of one multiprocessor
WAVE_CLOCKS = 1500  # to start a wave of programs
MULTIPROCESSORS = 108  # without a GPU
MOST_ACCUMULATED = {"rows": 64, "columns": 16}  # registers of a thread; beyond it kernels spill
# Of a thread: all that exist. By itself ptxas spills in order to fit a second program on a multiprocessor; the model
# assumes one, and the accumulators of a loop must stay in registers.
ALL_REGISTERS = 255
MOST_VISIBLE = {8: 256, 4: 1024, 2: 1024}  # columns that fit, by the bytes of an element

_precision: str | None = None


class Tiles(NamedTuple):
    """Of one launch: samples, columns of D and of H, columns of D in one product, parts of the streamed axis, warps,
    blocks of D that a program accumulates, the most registers of a thread (None: ptxas decides)."""

    BM: int
    BD: int
    BH: int
    BK: int
    split: int
    warps: int
    each: int
    registers: int | None = ALL_REGISTERS


class Problem(NamedTuple):
    plan: Plan
    batch: int
    D: int
    H: int
    replicas: int
    element: int  # bytes
    products: int  # of batch x D x H
    precision: str
    capability: int = 80
    kernel: str = ""  # the plan's results: of two kernels with equal sizes and products each has tiles of its own
    splits: bool = True  # can the streamed axis be split?


def fits(D: int, element: int) -> bool:
    """Do all D columns of a block's result fit into registers?"""
    return MOST_VISIBLE[element] >= D


def set_dot_precision(kind: str | None) -> None:
    """Sets the rounding of the factors of float32 products: ieee, tf32, bf16x3; None follows torch's CUDA setting."""
    if kind not in (None, "ieee", "tf32", "bf16x3"):
        raise ValueError(f"set_dot_precision got {kind!r}; expected 'ieee', 'tf32', 'bf16x3' or None")
    global _precision
    _precision = kind


def dot_precision(dtype: torch.dtype, capability: int) -> str:
    """The precision for `tl.dot`: only float32 has a choice, and tensor cores before compute capability 8 lack tf32."""
    if dtype != torch.float32 or capability < 80:
        return "ieee"
    kind = _precision or torch.backends.cuda.matmul.fp32_precision
    return kind if kind in ("tf32", "bf16x3") else "ieee"


def candidates(problem: Problem) -> list[Tiles]:
    """All plausible tiles: without those that would spill."""
    D, H, wide = problem.D, problem.H, problem.element == 8
    widest = 128 if not wide else 64 if problem.plan == "rows" else 32
    BD = min(widest, max(16, power_of_two(D)))
    chunks = -(-D // BD)
    by_thread = problem.precision == "ieee" and (problem.element >= 4 or problem.capability < 80)
    tiles = []
    most = MOST_ACCUMULATED[problem.plan]
    if wide:  # two registers for every number, of the products' factors too
        most //= 2
    samples: tuple[int, ...] = (16, 32, 64)
    keeps: tuple[int, ...] = (chunks,)
    if problem.plan == "columns":
        samples, keeps = (16,) if wide or by_thread else (16, 32), (1, 2, 3)
        if by_thread:
            keeps = (1, 2) if problem.products <= 4 else (1,)
    odd = D % 16 > 0 and D > 64  # rows that begin anywhere need registers for their addresses
    if odd and problem.plan == "columns":
        keeps = (1,)
    latents = (16,) if odd or (wide and problem.plan == "rows") else (16, 32)
    splits = (1, 2, 4, 8, 16) if problem.splits else (1,)
    for BM, BH, warps, split, each in product(samples, latents, (4, 8), splits, keeps):
        kept = BM if problem.plan == "rows" else BH
        accumulated = kept * each * BD * max(problem.element, 4) // 4 // (32 * warps)
        streamed = -(-H // BH) if problem.plan == "rows" else -(-problem.batch // BM)
        if by_thread and problem.plan == "rows" and BH == 32:  # as many registers again for a block of W
            accumulated *= 2
        if problem.plan == "rows" and warps == 4 and 4 * accumulated > 3 * most:  # few threads for the rest
            continue
        if accumulated > most or split > streamed or 32 * warps > BM * BH or each > chunks:
            continue
        # Without tensor cores a thread's registers have whole rows of both factors; two elements make a vector load.
        BK = min(BD, 16 if wide or (by_thread and warps == 4) else 32)
        tiles.append(Tiles(BM, BD, BH, BK, split, warps, each))
    return tiles or [Tiles(16, BD, 16, 16, 1, 8, keeps[0])]


def clocks(problem: Problem, tiles: Tiles, multiprocessors: int = MULTIPROCESSORS) -> float:
    """The model: waves of programs, each with its products or the bytes that it loads, whichever takes longer."""
    rows, columns = -(-problem.batch // tiles.BM), -(-problem.H // tiles.BH)
    if problem.plan == "rows":
        blocks, tiles_each = rows, -(-columns // tiles.split)
    else:
        blocks, tiles_each = columns * -(-problem.D // (tiles.each * tiles.BD)), -(-rows // tiles.split)
    padded = -(-problem.D // tiles.BD) * tiles.BD
    # Half of a column program's products end in its own rows of W, the other half are over all of D.
    fraction = 1.0 if problem.plan == "rows" else 0.5 + 0.5 * tiles.each * tiles.BD / padded
    kind = {2: "half", 8: "double"}.get(problem.element, problem.precision)
    work = tiles_each * tiles.BM * tiles.BH * padded * problem.products * fraction / RATES[kind]
    loads = tiles_each * (tiles.BM + tiles.BH) * problem.D * problem.products * fraction * problem.element
    loads /= L2_BYTES_PER_CLOCK
    waves = -(-blocks * tiles.split * problem.replicas // multiprocessors)
    return waves * (max(work, loads) + WAVE_CLOCKS) + (parts_clocks(problem, tiles) if tiles.split > 1 else 0.0)


def parts_clocks(problem: Problem, tiles: Tiles) -> float:
    """What a split adds: its tickets are zeroed, a launch more; a program writes its part, the last one reads all."""
    kept = tiles.BM * problem.D if problem.plan == "rows" else tiles.each * tiles.BD * tiles.BH
    return 2 * WAVE_CLOCKS + (1 + tiles.split) * kept * max(problem.element, 4) / L2_BYTES_PER_CLOCK


@cache
def ranked(problem: Problem, multiprocessors: int = MULTIPROCESSORS) -> tuple[Tiles, ...]:
    """The candidates, the best by the model first."""
    return tuple(sorted(candidates(problem), key=lambda tiles: (clocks(problem, tiles, multiprocessors), *tiles)))


def power_of_two(n: int) -> int:
    return 1 << max(n - 1, 0).bit_length()
