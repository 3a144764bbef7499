"""Suite `kernels`: ops of eblvm.kernels against their reference."""

from __future__ import annotations

from eblvm.bench.suites.ratios import Ratios


class Kernels(Ratios):
    kind = "kernels"
    help = "ops of eblvm.kernels against their reference"
