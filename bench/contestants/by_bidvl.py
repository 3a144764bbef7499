"""BiDVL's naive step, as it is and with its nets under `torch.compile`."""

from typing import Any

import torch
from torch._inductor import config as inductor

from eblvm.bench.contestants.roster import contestant


@contestant("naive", "bidvl")
def naive(method: Any) -> None:
    """Nothing is replaced."""


@contestant("torch.compile", "bidvl")
def compiled(method: Any) -> None:
    """The forward and backward passes of all three nets, compiled each."""
    inductor.compile_threads = 1
    for name in ("energy", "encoder", "generator"):
        net = getattr(method, name)
        net.forward = torch.compile(net.forward)
