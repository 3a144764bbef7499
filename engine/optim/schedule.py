"""Learning rate schedules."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

from eblvm.engine.options import Options, declared, option

MOST_STEPS = 2**31 - 1  # noise is counted by step in 32 bits


@dataclass(frozen=True)
class Schedule(Options):
    group = "optimisation"

    final_lr: ClassVar[float] = 0.0  # the learning rate that a factor of 0 stands for

    def factor(self, step: int, steps: int) -> float:
        """Return how far a learning rate is at a step of a run of `steps`, from 1 (its own) to 0 (the final one)."""
        return 1.0

    def rate(self, lr: Any, step: int, steps: int) -> Any:
        """Return a learning rate, a number or a tensor of them, at a step."""
        factor = self.factor(step, steps)
        if factor == 1 and self.final_lr == 0:  # the same number, without launches
            return lr
        return self.final_lr + factor * (lr - self.final_lr)


@dataclass(frozen=True)
class Constant(Schedule):
    kind = "constant"


@dataclass(frozen=True)
class Cosine(Schedule):
    """Half a cosine over its horizon, from a learning rate to the final one, where it stays."""

    kind = "cosine"

    horizon: int | None = option(None, "steps over which the cosine falls; none: those of the run", low=1)
    final_lr: float = option(0.0, "learning rate at the end of the cosine", low=0)  # type: ignore[misc]

    def factor(self, step: int, steps: int) -> float:
        horizon = self.horizon or steps
        return 0.5 * (1 + math.cos(math.pi * min(step, horizon) / horizon))


@dataclass(frozen=True)
class Stepwise(Schedule):
    kind = "step"

    decay_every: int = option(10_000, "steps between decays of the step schedule", low=1, high=MOST_STEPS)
    decay: float = option(0.5, "factor of the step schedule", low=0, below=1)

    def factor(self, step: int, steps: int) -> float:
        return self.decay ** (step // self.decay_every)


SCHEDULES = declared(Schedule, (Constant, Cosine, Stepwise))
