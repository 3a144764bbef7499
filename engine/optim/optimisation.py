"""Options that move the parameters: steps, batch, optimisers, learning rates and their schedules, seeds and replicas.

Replica r of a run with R seeds and learning rates l_0, l_1, ... has seed + r % R and rate l_{r // R}. Each equals the
single run with that seed and rate, up to the rounding of batched matrix products.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

import torch

from eblvm.engine.errors import UserError
from eblvm.engine.optim.adam import Adam, RmsProp
from eblvm.engine.optim.apex import Apex
from eblvm.engine.optim.base import Optimizer
from eblvm.engine.optim.sgd import Momentum
from eblvm.engine.options import Options, declared, option, slot

if TYPE_CHECKING:
    from torch import Tensor

    from eblvm.engine.config import Config


MOST_STEPS = 2**31 - 1  # noise is counted by step in 32 bits


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


class Constant(Schedule):
    kind = "constant"


class Cosine(Schedule):
    """Half a cosine over its horizon, from a learning rate to the final one, where it stays."""

    kind = "cosine"

    horizon: int | None = option(None, "steps over which the cosine falls; none: those of the run", low=1)
    final_lr: float = option(0.0, "learning rate at the end of the cosine", low=0)  # type: ignore[misc]

    def factor(self, step: int, steps: int) -> float:
        horizon = self.horizon or steps
        return 0.5 * (1 + math.cos(math.pi * min(step, horizon) / horizon))


class Stepwise(Schedule):
    kind = "step"

    decay_every: int = option(10_000, "steps between decays of the step schedule", low=1, high=MOST_STEPS)
    decay: float = option(0.5, "factor of the step schedule", low=0, below=1)

    def factor(self, step: int, steps: int) -> float:
        return self.decay ** (step // self.decay_every)


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
    schedule: Schedule = slot(declared(Schedule, (Constant, Cosine, Stepwise)), "learning rate schedule", Constant())
    clip_norm: float | None = option(None, "clip theta's gradient to this norm", above=0)
    ema: float | None = option(None, "decay of a moving average of theta and phi, kept beside them", above=0, below=1)
    seed: int = option(0, "seed of everything random", low=0, high=2**63 - 1)
    replicas: int = option(1, "seeds trained at once: seed, seed+1, ...", low=1, high=10_000)

    def check(self, config: Config) -> None:
        if not self.lr:
            raise UserError("got no learning rate, expected one or more, such as --lr 1e-3")
        if self.seed + self.replicas >= 2**63:
            raise UserError(f"got seed={self.seed}, expected seeds below 2^63")
        if self.optimizer == "apex" and (not config.running.on_cuda or config.step.compile or self.replicated):
            raise UserError("optimizer 'apex' is for the eager, single run on --device cuda; use 'adam'")
        if self.optimizer == "apex" and config.running.dtype != "float32":
            raise UserError(f"optimizer 'apex' got dtype={config.running.dtype!r}, expected float32; use 'adam'")

    @property
    def replicated(self) -> bool:
        return self.count > 1

    @property
    def count(self) -> int:
        """The number of replicas, seeds times learning rates; 1 for a single run."""
        return self.replicas * len(self.lr)

    def theta_optimizer(self) -> Optimizer:
        return self._optimizer(self.optimizer, clip_norm=self.clip_norm, average=self.ema)

    def phi_optimizer(self, **settings: Any) -> Optimizer:
        """Return the optimiser of q's real steps, which is never apex's: those have many small tensors, or a graph."""
        own = self.lower_optimizer or self.optimizer
        return self._optimizer("adam" if own == "apex" else own, **settings)

    def _optimizer(self, kind: str, **settings: Any) -> Optimizer:
        if kind == "rmsprop":
            return RmsProp(self.beta2, **settings)
        if kind == "sgd":
            return Momentum(self.beta1, **settings)
        return (Apex if kind == "apex" else Adam)((self.beta1, self.beta2), **settings)

    def seeds(self) -> Tensor:
        """Return the seeds as an int64 tensor, [] for a single run and [replicas] otherwise."""
        if not self.replicated:
            return torch.tensor(self.seed)
        return self.seed + torch.arange(self.replicas).repeat(len(self.lr))

    def names(self) -> list[str]:
        """Return a label per replica, in their order."""
        seeds = [f"seed={self.seed + r}" for _ in self.lr for r in range(self.replicas)]
        return [f"{name} {rate}".strip() for name, rate in zip(seeds, self.rate_labels(), strict=True)]

    def rate_labels(self) -> list[str]:
        """Return what of its label a replica shares with the other seeds at its learning rate; "" for one rate."""
        return [f"lr={rate:g}" if len(self.lr) > 1 else "" for rate in self.lr for _ in range(self.replicas)]

    def rates(self, step: int, own: Mapping[str, float | None], like: Tensor) -> dict[str, Tensor]:
        """Return the learning rates of a step, shaped as the replicas, with the dtype and device of `like`. phi follows
        theta's rate unless the method has one of its `own`. The unroll follows phi's rate unless it has its own, which
        no schedule changes."""
        at, lower, unrolled = (step, self.steps), own.get("phi"), own.get("unroll")
        theta = self.learning_rates(like.dtype, like.device, *at)
        phi = theta if lower is None else torch.full_like(theta, self.schedule.rate(lower, *at))
        unroll = phi if unrolled is None else torch.full_like(theta, unrolled)
        return {"theta": theta, "phi": phi, "unroll": unroll}

    def learning_rates(
        self, dtype: torch.dtype, device: torch.device | str = "cpu", step: int = 0, steps: int = 1
    ) -> Tensor:
        """Return theta's rates at a step, [] for a single run and [replicas] otherwise. They are computed on the host,
        in the run's precision, and filled in on the device, where a copy would wait."""
        where: dict[str, Any] = {"dtype": dtype, "device": device}
        rates = [float(self.schedule.rate(torch.tensor(rate, dtype=dtype), step, steps)) for rate in self.lr]
        if not self.replicated:
            return torch.full((), rates[0], **where)
        return torch.cat([torch.full((self.replicas,), rate, **where) for rate in rates])
