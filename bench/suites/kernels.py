"""Suite `kernels`: ops of eblvm.kernels against their reference."""

from __future__ import annotations

from dataclasses import dataclass

from eblvm.bench.suites.ratios import Ratios


@dataclass(frozen=True)
class Kernels(Ratios):
    kind = "kernels"
    help = "ops of eblvm.kernels against their reference"
