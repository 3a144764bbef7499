"""The exact score matching loss of a GRBM, the "test Fisher" of the BiSM paper's tables."""

import torch
from torch import Tensor

from eblvm.engine.nets.grbm import GRBM
from eblvm.engine.types import Params


@torch.no_grad()
def score_matching_loss(energy: GRBM, theta: Params, v: Tensor) -> float:
    """E [1/2 |s(v)|^2 + tr grad_v s(v)]: the Fisher divergence to the data less a constant of the data."""
    energy = energy.at(theta)
    square = 0.5 * energy.score(v).square().sum(-1)
    return float((square + energy.laplacian(v)).mean())
