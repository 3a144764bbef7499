"""Suite `toy`: a GRBM at the checkerboard's sizes, one replica and ten."""

from __future__ import annotations

from eblvm.bench.suites.ratios import Ratios


class Toy(Ratios):
    kind = "toy"
    help = "a GRBM at the checkerboard's sizes, one replica and ten"
