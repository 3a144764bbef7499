"""What a launch costs in numbers that depend on no clock: instructions of warps, traffic by 32-byte sectors."""

from collections import Counter
from dataclasses import dataclass, field

import numpy as np

from tests.emulator.formats import Array

SECTOR = 32
WARP_SHIFT = 48  # above every address
MATRIX = ("mma", "wgmma", "tcgen05")


@dataclass
class Traffic:
    """Of global memory in one direction: requests of warps, the sectors they touch, the bytes that they asked for."""

    requests: int = 0
    sectors: int = 0
    useful_bytes: int = 0  # of a request: different ones

    def add(self, at: Array, size: int, threads: Array) -> None:
        """Count an access of `size` bytes at `at`, by so numbered threads of a wave."""
        place = np.sort(threads >> 5 << WARP_SHIFT | at)
        self.requests += _different(place >> WARP_SHIFT)
        self.sectors += _different(place // SECTOR)
        self.useful_bytes += size * _different(place)

    @property
    def sectors_per_useful_byte(self) -> float:
        """Return 1 where every byte of every sector was asked for."""
        return self.sectors * SECTOR / max(self.useful_bytes, 1)


@dataclass
class Counts:
    """Of one launch; instructions are counted once for each warp that runs them."""

    programs: int = 0
    warps: int = 0  # of a program
    instructions: Counter[str] = field(default_factory=Counter)  # by opcode
    loads: Traffic = field(default_factory=Traffic)
    stores: Traffic = field(default_factory=Traffic)

    @property
    def total(self) -> int:
        return sum(self.instructions.values())

    def by_kind(self) -> Counter[str]:
        kinds: Counter[str] = Counter()
        for opcode, number in self.instructions.items():
            kinds[kind_of(opcode)] += number
        return kinds

    def issue_bound(self, multiprocessors: int, schedulers: int = 4) -> float:
        """Clocks that the launch takes at least: a scheduler issues one instruction of a warp per clock."""
        waves = -(-self.programs // multiprocessors)
        return waves * self.total / self.programs / min(schedulers, self.warps)


def _different(ordered: Array) -> int:
    return 1 + int(np.count_nonzero(np.diff(ordered)))


def kind_of(opcode: str) -> str:
    """Return the unit of a multiprocessor that an instruction keeps busy."""
    kind, *modifiers = opcode.split(".")
    if kind in MATRIX:
        return "matrix"
    if kind in ("ld", "st", "cp", "atom", "red", "ldmatrix", "stmatrix"):
        return "global memory" if "global" in modifiers else "shared memory"
    if kind in ("fma", "mul", "add", "sub") and modifiers[-1][0] == "f":
        return {"f32": "float32", "f64": "float64"}.get(modifiers[-1][:3], "other")
    return "barrier" if kind in ("bar", "barrier") else "other"
