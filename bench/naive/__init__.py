"""The published research procedure, plainly written in `torch.autograd`: the baseline of every ratio.

Each file is one method family and can be read next to the paper's algorithm. Nothing of the engine is used here,
nothing is reused between steps, and nothing is made slower than it has to be: fused operators, in-place real optimiser
steps, no copies.
"""

from eblvm.bench.naive.bidsm import BiDsm
from eblvm.bench.naive.bidvl import Bidvl
from eblvm.bench.naive.bimdsm import BiMdsm, Mdsm
from eblvm.bench.naive.cd import Cd
from eblvm.bench.naive.dsm import Dsm
from eblvm.bench.naive.vages import VagesDsm, VagesMdsm

__all__ = ["BiDsm", "BiMdsm", "Bidvl", "Cd", "Dsm", "Mdsm", "VagesDsm", "VagesMdsm"]
