"""Learning rates: every optimiser's rate at a step, as tensors, so that neither vmap nor compile sees a new program."""

import math

import torch
from torch import Tensor

from eblvm.engine.config import Config
from eblvm.engine.training import replicas


def step_rates(config: Config, step: int, like: Tensor) -> dict[str, Tensor]:
    """Rates of theta, phi and the unrolled steps, shaped as the replicas, with the dtype and device of `like`.

    The unroll follows phi's rate unless it has one of its own, which no schedule changes.
    """
    scale = factor(config, step)
    theta = scale * replicas.learning_rates(config, like.dtype).to(like.device)
    phi = theta if config.lower_lr is None else torch.full_like(theta, scale * config.lower_lr)
    unroll = phi if config.unroll_lr is None else torch.full_like(theta, config.unroll_lr)
    return {"theta": theta, "phi": phi, "unroll": unroll}


def factor(config: Config, step: int) -> float:
    """The schedule's factor at a step."""
    if config.schedule == "cosine":
        return 0.5 * (1 + math.cos(math.pi * step / config.steps))
    if config.schedule == "step":
        return config.decay ** (step // config.decay_every)
    return 1.0
