"""One training step: the update of theta that all objectives share, and the state as a checkpoint holds it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from eblvm.engine.autodiff import collectives
from eblvm.engine.autodiff.mixed_precision import SMALLEST, next_scale
from eblvm.engine.autodiff.ranges import named
from eblvm.engine.errors import UserError
from eblvm.engine.methods.types import Info, Noise, Objective, OverlappingObjective, Rates, State
from eblvm.engine.optim.apex import apex_adam_
from eblvm.engine.optim.optimizers import Adam, AdamState, Optimizer, averaged
from eblvm.engine.optim.options import Optimisation
from eblvm.engine.types import Params
from eblvm.kernels.adam_unroll import all_finite, clipped, restore_, serves_lists


@dataclass(frozen=True)
class Update:
    """One training step: the objective's gradient, clipped by norm if asked, a step of theta, both moving averages."""

    objective: Objective
    optimizer: Optimizer
    clip_norm: float | None = None
    ema_decay: float | None = None
    apex: bool = False  # Adam's steps in place are NVIDIA apex's
    frozen: tuple[str, ...] = ()  # parameters that keep their start
    in_place: bool = False  # theta, its moments and its average move in the state's own memory: the old state is spent

    @classmethod
    def of(cls, objective: Any, optimisation: Optimisation, frozen: tuple[str, ...] = ()) -> Self:
        """The update of an objective as a run's options ask for it."""
        settings = (optimisation.theta_optimizer(), optimisation.clip_norm, optimisation.ema)
        return cls(objective, *settings, apex=optimisation.optimizer == "apex", frozen=frozen)

    @torch.no_grad()
    def __call__(self, state: State, v: Tensor, noise: Noise, rates: Rates) -> tuple[State, Info]:
        before = state
        gradient, state, info = self.mean_gradient(state, v, noise, rates)
        go = None
        if before.scale:
            value = before.scale["value"]
            finite = all_finite([x for x in tree_leaves((gradient, state.phi)) if isinstance(x, Tensor)])
            go = finite | (value <= SMALLEST)  # else an overflow of the scale's making: no step is taken
            state = state._replace(scale=next_scale(before.scale, finite))
            info = info | {"loss_scale": value}
            if serves_lists(value):  # nobody waits for the answer
                info["skipped"] = (~go).to(value.dtype)
                restore_(tree_leaves((state.phi, state.phi_opt)), tree_leaves((before.phi, before.phi_opt)), go)
            elif not go:
                skipped = {"loss_scale": value, "skipped": torch.ones_like(value)}
                return before._replace(scale=state.scale), skipped
            else:
                go = None
        return self.move(state, gradient, info, rates, go)

    def mean_gradient(self, state: State, v: Tensor, noise: Noise, rates: Rates) -> tuple[Params, State, Info]:
        """What the objective gives, gradient and info as means over processes. Of an objective that says when a part of
        its gradient is complete, the parts travel while backward goes on; of others all travels at the end."""
        if collectives.size() == 1 or not isinstance(self.objective, OverlappingObjective):
            with named("gradient"):
                gradient, state, info = self.objective.gradient(state, v, noise, rates)
            with named("mean over processes"):
                gradient, info = collectives.mean((gradient, info))
            return gradient, state, info
        under_way = collectives.MeanUnderWay(list(state.theta.values()))
        with named("gradient"):
            gradient, state, info = self.objective.gradient(state, v, noise, rates, under_way)
        with named("mean over processes"):
            means = under_way.wait(list(gradient.values()))
            return dict(zip(gradient, means, strict=True)), state, collectives.mean(info)

    def move(
        self, state: State, gradient: Params, info: Info, rates: Rates, go: Tensor | None = None
    ) -> tuple[State, Info]:
        """theta and both averages one step on, after phi's steps. With `go`, a bool on the device, nothing moves where
        it is false."""
        with named("move theta"):
            state, info = self.move_theta(state, gradient, info, rates, go)
        before, gated = state.phi_ema, go is not None and bool(state.phi_ema)
        phi_ema = averaged(before, state.phi, self.ema_decay, self.in_place and not gated)
        if gated and go is not None:
            restore_(list(phi_ema.values()), list(before.values()), go)
        return state._replace(phi_ema=phi_ema), info

    def move_theta(
        self, state: State, gradient: Params, info: Info, rates: Rates, go: Tensor | None = None
    ) -> tuple[State, Info]:
        """theta and its average one step on; leading axes of the rates, and so of all tensors, are replicas."""
        moments, theta, lr = state.theta_opt, state.theta, rates["theta"]
        assert isinstance(moments, AdamState)
        if self.frozen:
            gradient = gradient | {k: torch.zeros_like(gradient[k]) for k in self.frozen}
        by_lists = self.in_place and not self.apex and isinstance(self.optimizer, Adam)
        if go is not None and not by_lists and not go:  # the others wait for the answer
            return state, info
        if self.apex and self.in_place:
            theta_opt = moments._replace(step_count=moments.step_count + 1)
            adjusted, norm = clipped(list(gradient.values()), lr.dim(), self.clip_norm)
            assert isinstance(self.optimizer, Adam)
            apex_adam_(theta, dict(zip(gradient, adjusted, strict=True)), *theta_opt, lr, self.optimizer.rule)
        elif by_lists and isinstance(self.optimizer, Adam):
            decay = self.ema_decay or 0.0
            theta, theta_opt, norm = self.optimizer.move(
                theta, gradient, moments, lr, True, self.clip_norm, state.ema, decay, go
            )
            return state._replace(theta=theta, theta_opt=theta_opt), info | {"gradient_norm": norm}
        else:
            theta, theta_opt, norm = self.optimizer.move(theta, gradient, moments, lr, self.in_place, self.clip_norm)
        ema = averaged(state.ema, theta, self.ema_decay, self.in_place)
        state = state._replace(theta=theta, theta_opt=theta_opt, ema=ema)
        return state, info | {"gradient_norm": norm}


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
