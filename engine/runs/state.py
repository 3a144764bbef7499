"""A training state as a checkpoint holds it: plain dicts of tensors, by names that older versions wrote too."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from eblvm.engine.errors import UserError
from eblvm.engine.methods.base import State, empty_weights
from eblvm.engine.optim.base import Moments, Weights


def to_tree(state: State) -> dict[str, Any]:
    """Return the state as dicts; a method without a posterior has an empty phi."""
    theta, phi = state.theta, state.phi
    return {
        "theta": theta.params,
        "phi": phi.params,
        "theta_opt": theta.moments._asdict(),
        "phi_opt": phi.moments._asdict() if phi.params else (),
        "chain": state.chain,
        "ema": theta.average,
        "scale": state.scale,
        "buffers": state.buffers,
        "phi_ema": phi.average,
    }


def from_tree(tree: dict[str, Any], device: torch.device, dtype: torch.dtype | None = None) -> State:
    """Return the state on a device, and of a type if one is given."""
    placed = _placed(tree, device, dtype)
    theta = Weights(placed["theta"], _moments(placed["theta_opt"]), placed["ema"])
    phi = Weights({}, Moments({}, {}, torch.zeros_like(theta.moments.step_count)))  # with its replica axis
    if placed["phi"]:
        phi = Weights(placed["phi"], _moments(placed["phi_opt"]), placed.get("phi_ema", {}))
    return State(theta, phi, placed["chain"], placed["scale"], placed.get("buffers", {}))


def check_payload(payload: dict[str, Any]) -> None:
    """Raise a `UserError` if a checkpoint does not hold what a run needs to go on."""
    try:
        if not isinstance(payload["step"], int) or not isinstance(payload["best"], dict):
            raise TypeError("its step or its best model has another type")
        from_tree(payload["state"], torch.device("meta"))
    except (KeyError, TypeError, AttributeError) as error:
        raise UserError(f"it does not hold a run's state ({error!r})") from None


def _moments(tree: Any) -> Moments:
    """Return the moments of an optimiser; `taken` is what format 1 called the step count."""
    if not tree:  # an exported model has none
        return empty_weights().moments
    named = {"step_count" if name == "taken" else name: value for name, value in tree.items()}
    return Moments(**named)


def _placed(value: Any, device: torch.device, dtype: torch.dtype | None) -> Any:
    if isinstance(value, dict):
        return {k: _placed(v, device, dtype) for k, v in value.items()}
    return value.to(device, dtype) if isinstance(value, Tensor) else value
