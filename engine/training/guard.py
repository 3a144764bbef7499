"""Stops a run whose numbers have broken, before they overwrite anything good."""

import math

import torch
from torch import Tensor

from eblvm.engine.errors import DivergedError
from eblvm.engine.methods.types import State
from eblvm.engine.optim.optimizers import AdamState
from eblvm.engine.types import Params

LIMIT = 1e9  # no loss, gradient norm or parameter of a healthy run is near it
UNBOUNDED = ("moments", "buffers")  # squares of gradients may be large in health; NaN and infinity are not
RUNAWAY = "--upper hinge --output real, a smaller --ratio, or a smaller --lr"

ADVICE = {
    "loss": "a smaller --lr, --clip-norm 1, or a larger noise level --sigma",
    "lower": "a smaller --lower-lr, or --divergence kl-exact",
    "langevin": "a smaller --langevin-alpha, or fewer steps --C",
    "gradient_norm": "a smaller --lr; with unrolled steps a smaller --unroll-lr or fewer --N",
    "theta": "a smaller --lr or --clip-norm 1",
    "phi": "a smaller --lower-lr, or --divergence kl-exact on a GRBM",
    "moments": "a smaller --lr, or --clip-norm 1",
    "buffers": "a smaller --lr",
    "energy_data": RUNAWAY,
    "energy_model": RUNAWAY,
}


def check(
    step: int, quantities: dict[str, list[float]], last_good: int | None, energy_limit: float | None = None
) -> None:
    """Raise `DivergedError` naming the first broken quantity (and replica) of `quantities`, values by replica."""
    for name, values in quantities.items():
        for replica, value in enumerate(values):
            limit = math.inf if name in UNBOUNDED else LIMIT
            if energy_limit and name.startswith("energy"):
                limit = energy_limit
            if math.isfinite(value) and abs(value) < limit:
                continue
            where = f" of replica {replica}" if len(values) > 1 else ""
            kept = (
                f"the checkpoint of step {last_good} is kept" if last_good is not None else "no checkpoint was made yet"
            )
            raise DivergedError(
                f"stopped at step {step}: {name}{where} is {value}; {kept}. Try {ADVICE.get(name, 'a smaller --lr')}."
            )


def sizes(state: State, replicated: bool) -> dict[str, list[float]]:
    """The largest magnitude in each watched part of the state, by replica."""
    largest = torch.vmap(magnitude) if replicated else magnitude
    return {name: torch.atleast_1d(largest(x)).tolist() for name, x in watched(state).items()}


def watched(state: State) -> dict[str, Params]:
    """Parameters, both optimisers' moments, what nets hold beside parameters."""
    moments = {
        f"{who}.{kind}.{name}": p
        for who, optimizer in (("theta", state.theta_opt), ("phi", state.phi_opt))
        if isinstance(optimizer, AdamState)
        for kind, tree in (("m", optimizer.m), ("v", optimizer.v))
        for name, p in tree.items()
    }
    parts = {"theta": state.theta, "phi": state.phi, "moments": moments, "buffers": state.buffers}
    return {name: tree for name, tree in parts.items() if tree}


def magnitude(tree: Params) -> Tensor:
    """The largest absolute entry; NaN if there is one."""
    return torch.stack([p.abs().max() for p in tree.values()]).max()
