"""Suite `grbm`: a GRBM at Frey face's sizes, over N and K as in the BiSM paper's Table 3."""

from __future__ import annotations

from eblvm.bench.suites.ratios import Ratios


class Grbm(Ratios):
    kind = "grbm"
    help = "a GRBM at Frey face's sizes, over N and K as in the BiSM paper's Table 3"
