"""What stops a run: numbers that have broken, before they overwrite anything good, and signals, after it has saved."""

import math
import signal
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from eblvm.engine.errors import DivergedError, UserError
from eblvm.engine.methods.types import State
from eblvm.engine.nets.base import call
from eblvm.engine.nets.posteriors import Posterior
from eblvm.engine.optim.optimizers import AdamState
from eblvm.engine.system import ENDINGS
from eblvm.engine.types import Params

LIMIT = 1e9  # no loss, gradient norm or parameter of a healthy run is near it
Q_LIMIT = 1e4  # logits, means and log standard deviations of a q that says anything are far below
UNBOUNDED = ("moments", "buffers")  # squares of gradients may be large in health; NaN and infinity are not
RUNAWAY = "--upper hinge --output real, a smaller --ratio, or a smaller --lr"

ADVICE = {
    "loss": "a smaller --lr, --clip-norm 1, or a larger noise level --sigma",
    "lower": "a smaller --lower-lr, or --divergence kl-exact",
    "langevin": "a smaller --langevin-alpha, or fewer steps --C",
    "gradient_norm": "a smaller --lr; with unrolled steps a smaller --unroll-lr or fewer --N",
    "theta": "a smaller --lr or --clip-norm 1",
    "phi": "a smaller --lower-lr, or --divergence kl-exact",
    "moments": "a smaller --lr, or --clip-norm 1",
    "buffers": "a smaller --lr",
    "ema": "a smaller --lr or --clip-norm 1",
    "chain": "a smaller --lr, or fewer --sweeps",
    "q": "a smaller --lower-lr, or --divergence kl-exact: q(h|v) is not one that any model has",
    "energy_data": RUNAWAY,
    "energy_model": RUNAWAY,
}


def check(
    step: int,
    quantities: dict[str, list[float]],
    kept: Callable[[], int | None] = lambda: None,
    energy_limit: float | None = None,
) -> None:
    """Raise `DivergedError` naming the first broken quantity (and replica) of `quantities`, values by replica.

    `kept` gives the step of the newest checkpoint on disk; it is asked when something is broken."""
    for name, values in quantities.items():
        for replica, value in enumerate(values):
            limit = math.inf if name in UNBOUNDED else LIMIT
            if name == "q":
                limit = Q_LIMIT
            if energy_limit and name.startswith("energy"):
                limit = energy_limit
            if math.isfinite(value) and abs(value) < limit:
                continue
            where = f" of replica {replica}" if len(values) > 1 else ""
            good = kept()
            said = f"the checkpoint of step {good} is kept" if good is not None else "no checkpoint was made yet"
            raise DivergedError(
                f"stopped at step {step}: {name}{where} is {value}; {said}. Try {ADVICE.get(name, 'a smaller --lr')}."
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
    parts |= {"ema": state.ema, "chain": state.chain}
    return {name: tree for name, tree in parts.items() if tree}


@torch.no_grad()
def q_sizes(objective: Any, state: State, v: Tensor) -> list[float]:
    """The largest magnitude among q's outputs at v, by replica; none where a method has no q."""
    posterior = getattr(objective, "posterior", None) or getattr(
        getattr(objective, "estimator", None), "posterior", None
    )
    if not isinstance(posterior, Posterior) or not state.phi:
        return []
    expected = dict(posterior.named_parameters())
    if state.phi.keys() != expected.keys():
        return []
    name = next(iter(expected))
    leading = state.phi[name].dim() - expected[name].dim()
    phis = [{k: p[r] for k, p in state.phi.items()} for r in range(len(state.phi[name]))] if leading else [state.phi]
    found = [tree_leaves(call(posterior, phi, "params", v)) for phi in phis]
    return [float(torch.stack([x.abs().max() for x in parts]).max()) for parts in found]


def magnitude(tree: Params) -> Tensor:
    """The largest absolute entry; NaN if there is one."""
    return torch.stack([p.abs().max() for p in tree.values()]).max()


def require_folder(out: Path) -> None:
    """A run folder that was removed or replaced while it was trained is not made again in silence."""
    if not (out / "config.json").is_file():
        raise UserError(
            f"{out} was removed, or its config.json was, while the run was trained, so nothing of it can be kept "
            "there; give the same command to begin it again"
        )


class Interrupt:
    """SIGINT, SIGTERM and SIGHUP ask the loop to save and leave; a second SIGINT ends at once."""

    def __init__(self) -> None:
        self.requested = False
        self._before = {s: signal.signal(s, self._ask) for s in ENDINGS}

    def _ask(self, number: int, frame: FrameType | None) -> None:
        if self.requested and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.requested = True

    def restore(self) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
