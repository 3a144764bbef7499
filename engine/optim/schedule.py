"""Learning rates: every optimiser's rate at a step, as tensors, so that neither vmap nor compile sees a new program."""

from typing import Any

import torch
from torch import Tensor

from eblvm.engine.optim.options import Optimisation


def step_rates(
    optimisation: Optimisation, step: int, like: Tensor, lower_lr: float | None = None, unroll_lr: float | None = None
) -> dict[str, Tensor]:
    """Rates of theta, phi and the unrolled steps, shaped as the replicas, with the dtype and device of `like`.

    phi follows theta's rate unless it has one of its own. The unroll follows phi's rate unless it has one of its own,
    which no schedule changes.
    """
    at = (step, optimisation.steps)
    theta = optimisation.schedule.rate(learning_rates(optimisation, like.dtype, like.device), *at)
    phi = theta if lower_lr is None else torch.full_like(theta, optimisation.schedule.rate(lower_lr, *at))
    unroll = phi if unroll_lr is None else torch.full_like(theta, unroll_lr)
    return {"theta": theta, "phi": phi, "unroll": unroll}


def learning_rates(optimisation: Optimisation, dtype: torch.dtype, device: torch.device | str = "cpu") -> Tensor:
    """Learning rates of theta, [] for a single run and [replicas] otherwise; filled in, where a copy would wait."""
    kwargs: dict[str, Any] = {"dtype": dtype, "device": device}
    if not optimisation.replicated:
        return torch.full((), optimisation.lr[0], **kwargs)
    return torch.cat([torch.full((optimisation.replicas,), rate, **kwargs) for rate in optimisation.lr])
