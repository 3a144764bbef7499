"""The first state of a run."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from eblvm.engine.autodiff.mixed_precision import initial_scale
from eblvm.engine.config import Config
from eblvm.engine.methods.base import Nets, State
from eblvm.engine.optim import replicas
from eblvm.engine.optim.base import Weights
from eblvm.engine.runs.state import from_tree, to_tree
from eblvm.kernels.philox import Key

if TYPE_CHECKING:
    from eblvm.engine.training.fork import Fork


def initial_state(
    config: Config,
    nets: Nets,
    seeds: Tensor,
    v: Tensor,
    fork: Fork | None = None,
    say: Callable[[str], None] = print,
    device: torch.device | str = "cpu",
) -> State:
    """Return the start of every replica from its own seed and its first batch v, or of a fork; averages start there."""

    def one(seed: int, v: Tensor) -> State:
        state = config.method.init(nets, Key(seed, 0), v, config.optimisation.theta_optimizer())
        scale = initial_scale(config.model.precision, torch.zeros(()))
        state = state._replace(theta=averaging(state.theta), phi=averaging(state.phi), scale=scale)
        return from_tree(to_tree(state), torch.device(device), v.dtype)

    def averaging(weights: Weights) -> Weights:
        if config.optimisation.ema is None:
            return weights
        return weights._replace(average={k: p.clone() for k, p in weights.params.items()})

    state = replicas.stack([one(int(s), v[r]) for r, s in enumerate(seeds)]) if seeds.dim() else one(int(seeds), v)
    if fork is None:
        return state
    state, sentences = fork.started(state)
    for sentence in sentences:
        say(sentence)
    return state
