"""One training step: the update of theta that all objectives share, and the state as a checkpoint holds it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from eblvm.engine.autodiff import collectives
from eblvm.engine.errors import UserError
from eblvm.engine.methods.types import Info, Noise, Objective, Rates, State
from eblvm.engine.optim.apex import apex_adam_
from eblvm.engine.optim.loss_scale import SMALLEST, next_scale
from eblvm.engine.optim.optimizers import Adam, AdamState, averaged
from eblvm.engine.optim.options import Optimisation
from eblvm.engine.types import Params
from eblvm.kernels.adam_unroll import clipped


@dataclass(frozen=True)
class Update:
    """One training step: the objective's gradient, clipped by norm if asked, Adam on theta, both moving averages."""

    objective: Objective
    optimizer: Adam
    clip_norm: float | None = None
    ema_decay: float | None = None
    apex: bool = False  # Adam's steps in place are NVIDIA apex's
    in_place: bool = False  # theta, its moments and its average move in the state's own memory: the old state is spent

    @classmethod
    def of(cls, objective: Any, optimisation: Optimisation) -> Self:
        """The update of an objective as a run's options ask for it."""
        adam = Adam(optimisation.betas)
        return cls(objective, adam, optimisation.clip_norm, optimisation.ema, apex=optimisation.optimizer == "apex")

    @torch.no_grad()
    def __call__(self, state: State, v: Tensor, noise: Noise, rates: Rates) -> tuple[State, Info]:
        before = state
        gradient, state, info = self.objective.gradient(state, v, noise, rates)
        gradient, info = collectives.mean((gradient, info))
        if before.scale:
            finite = all_finite((gradient, state.phi))
            info = info | {"loss_scale": before.scale["value"]}
            if (
                not finite and float(before.scale["value"]) > SMALLEST
            ):  # an overflow of the scale's making: no step is taken
                skipped = {"loss_scale": info["loss_scale"], "skipped": torch.ones_like(info["loss_scale"])}
                return before._replace(scale=next_scale(before.scale, finite)), skipped
            state = state._replace(scale=next_scale(before.scale, finite))
        return self.move(state, gradient, info, rates)

    def move(self, state: State, gradient: Params, info: Info, rates: Rates) -> tuple[State, Info]:
        """theta and both averages one step on, after phi's steps."""
        state, info = self.move_theta(state, gradient, info, rates)
        return state._replace(phi_ema=averaged(state.phi_ema, state.phi, self.ema_decay, self.in_place)), info

    def move_theta(self, state: State, gradient: Params, info: Info, rates: Rates) -> tuple[State, Info]:
        """theta and its average one step on; leading axes of the rates, and so of all tensors, are replicas."""
        moments, theta, lr = state.theta_opt, state.theta, rates["theta"]
        assert isinstance(moments, AdamState)
        if self.apex and self.in_place:
            theta_opt = moments._replace(step_count=moments.step_count + 1)
            adjusted, norm = clipped(list(gradient.values()), lr.dim(), self.clip_norm)
            apex_adam_(theta, dict(zip(gradient, adjusted, strict=True)), *theta_opt, lr, self.optimizer.rule)
        else:
            theta, theta_opt, norm = self.optimizer.move(theta, gradient, moments, lr, self.in_place, self.clip_norm)
        ema = averaged(state.ema, theta, self.ema_decay, self.in_place)
        state = state._replace(theta=theta, theta_opt=theta_opt, ema=ema)
        return state, info | {"gradient_norm": norm}


def all_finite(values: Any) -> bool:
    return bool(torch.stack([x.isfinite().all() for x in tree_leaves(values)]).all())


def tree(value: Any) -> Any:
    """NamedTuples as dicts, so that a checkpoint holds nothing but plain containers and tensors."""
    if hasattr(value, "_asdict"):
        return {k: tree(v) for k, v in value._asdict().items()}
    if isinstance(value, dict):
        return {k: tree(v) for k, v in value.items()}
    return value


def state_from(saved: dict[str, Any], device: torch.device, dtype: torch.dtype | None = None) -> State:
    """A `State` from its tree, on the device."""

    def place(value: Any) -> Any:
        if isinstance(value, dict):
            return {k: place(v) for k, v in value.items()}
        return value.to(device, dtype) if isinstance(value, Tensor) else value

    parts = place(saved)
    for name in ("theta_opt", "phi_opt"):
        moments = parts[name]
        if "taken" in moments:  # what `step_count` was called in checkpoints of format 1
            moments["step_count"] = moments.pop("taken")
        parts[name] = AdamState(**moments) if moments else ()
    return State(**parts)


def check_payload(payload: dict[str, Any]) -> None:
    """A `UserError` if a checkpoint does not hold what a run needs to go on."""
    try:
        if not isinstance(payload["step"], int) or not isinstance(payload["best"], dict):
            raise TypeError("its step or its best model has another type")
        state_from(payload["state"], torch.device("meta"))
    except (KeyError, TypeError, AttributeError) as error:
        raise UserError(f"it does not hold a run's state ({error!r})") from None
