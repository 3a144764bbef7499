"""Suite `toy`: a GRBM at the checkerboard's sizes, one replica and ten."""

from __future__ import annotations

from dataclasses import dataclass

from eblvm.bench.suites.ratios import Ratios


@dataclass(frozen=True)
class Toy(Ratios):
    kind = "toy"
    help = "a GRBM at the checkerboard's sizes, one replica and ten"
