"""How a run moves its parameters: steps, batch, Adam, learning rates and their schedule."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from eblvm.engine.errors import UserError
from eblvm.engine.options import Options, by_kind, option, slot

if TYPE_CHECKING:
    from eblvm.engine.optim.optimizers import Optimizer

MOST_STEPS = 2**31 - 1  # noise is counted by step in 32 bits


@dataclass(frozen=True)
class Schedule(Options):
    group = "optimisation"

    final_lr: ClassVar[float] = 0.0  # the learning rate that a factor of 0 stands for

    def factor(self, step: int, steps: int) -> float:
        """Where a learning rate is at a step of a run of `steps`, between 1 (its own) and 0 (the final one)."""
        return 1.0

    def rate(self, lr: Any, step: int, steps: int) -> Any:
        """A learning rate, a number or a tensor of them, at a step."""
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
class Step(Schedule):
    kind = "step"

    decay_every: int = option(10_000, "steps between decays of the step schedule", low=1, high=MOST_STEPS)
    decay: float = option(0.5, "factor of the step schedule", low=0, below=1)

    def factor(self, step: int, steps: int) -> float:
        return self.decay ** (step // self.decay_every)


SCHEDULES = by_kind((Constant(), Cosine(), Step()))


@dataclass(frozen=True)
class Optimisation(Options):
    group = "optimisation"

    steps: int = option(100_000, "training steps", low=1, high=MOST_STEPS)
    batch: int = option(100, "minibatch size", low=1, high=2**31 - 1)
    lr: tuple[float, ...] = option((1e-3,), "Adam's learning rate for theta; a list trains one replica each", above=0)
    optimizer: str = option(
        "adam",
        "of theta: Adam, RMSProp, SGD with momentum, or Adam by NVIDIA apex",
        choices=("adam", "rmsprop", "sgd", "apex"),
    )
    lower_optimizer: str | None = option(
        None, "of phi; none: that of theta", choices=("adam", "rmsprop", "sgd"), needs="learns_q"
    )
    beta1: float = option(0.9, "Adam's first decay; SGD's momentum", low=0, below=1)
    beta2: float = option(0.95, "Adam's second decay; RMSProp's decay", low=0, below=1)
    schedule: Schedule = slot(SCHEDULES, "learning rate schedule", Constant())
    clip_norm: float | None = option(None, "clip theta's gradient to this norm", above=0)
    ema: float | None = option(None, "decay of a moving average of theta and phi, kept beside them", above=0, below=1)
    seed: int = option(0, "seed of everything random", low=0, high=2**63 - 1)
    replicas: int = option(1, "seeds trained at once: seed, seed+1, ...", low=1, high=10_000)

    @property
    def replicated(self) -> bool:
        return self.replicas > 1 or len(self.lr) > 1

    @property
    def betas(self) -> tuple[float, float]:
        return self.beta1, self.beta2

    def theta_optimizer(self) -> Optimizer:
        return self._optimizer(self.optimizer)

    def phi_optimizer(self, weight_decay: float = 0.0) -> Optimizer:
        return self._optimizer(self.lower_optimizer or self.optimizer, weight_decay)

    def _optimizer(self, kind: str, weight_decay: float = 0.0) -> Optimizer:
        from eblvm.engine.optim.optimizers import Adam, Momentum, RmsProp

        if kind == "rmsprop":
            return RmsProp(self.beta2, weight_decay=weight_decay)
        if kind == "sgd":
            return Momentum(self.beta1, weight_decay)
        return Adam(self.betas, weight_decay=weight_decay)

    def check(self) -> None:
        if not self.lr:
            raise UserError("got no learning rate, expected one or more, such as --lr 1e-3")
        if self.seed + self.replicas >= 2**63:
            raise UserError(f"got seed={self.seed}, expected seeds below 2^63")
