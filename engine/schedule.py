"""Learning rate schedules: the factor on every learning rate at a step."""

import math

from eblvm.engine.config import Config


def factor(config: Config, step: int) -> float:
    if config.schedule == "cosine":
        return 0.5 * (1 + math.cos(math.pi * step / config.steps))
    if config.schedule == "step":
        return config.decay ** (step // config.decay_every)
    return 1.0
