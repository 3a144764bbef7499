"""The step size of SGD on a linear posterior, from the batch itself."""

import torch
from torch import Tensor

from eblvm.engine.autodiff import collectives


def linear_step_size(v_BD: Tensor, iterations: int = 16) -> Tensor:
    """6 / lambda_max of M = (v v^T + 1 1^T) / B: three quarters of the largest stable step on a linear posterior.

    A step of size a on (A, a) moves the logits by -a M delta, and the exact KL's curvature in a logit is at most 1/4.
    Of the steps tried on Frey face (docs/results.md) those near the limit gave the best models.
    """

    def norm(x: Tensor) -> Tensor:  # over all ranks' samples, as are M's products
        return collectives.mean(x.square().sum()).sqrt()

    x = torch.ones_like(v_BD[:, :1])
    for _ in range(iterations):
        x = x / norm(x)
        pulled, total = collectives.mean((v_BD.T @ x, x.sum()))
        x = (v_BD @ pulled + total) / v_BD.shape[0]
    return 6 / norm(x)
