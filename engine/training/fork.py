"""A run that starts from another run's weights: a fork, which records its parent.

    eblvm train --init RUN[@STEP|@best|@last|@ema] ...

theta must be the same energy's. q(h|v) is taken over where both runs have the same network for it and starts anew
otherwise: BiSM can go on from VaGES, and either on a GRBM from a method without q. The optimisers' moments and the
steps start anew. A fork writes a checkpoint of step 0: once it has begun it does not need its parent.
"""

from __future__ import annotations

import hashlib
from typing import Any, NamedTuple

from eblvm.engine.config import Config
from eblvm.engine.errors import UserError
from eblvm.engine.methods.base import State
from eblvm.engine.optim import replicas
from eblvm.engine.optim.base import Weights
from eblvm.engine.runs import checkpoint, exported
from eblvm.engine.runs.parent import Parent
from eblvm.engine.runs.saved import SavedRun
from eblvm.engine.types import Params


class Fork(NamedTuple):
    parent: Parent
    run: SavedRun
    config: Config

    @classmethod
    def of(cls, parent: Parent | None, config: Config) -> Fork | None:
        """Return the fork of a parent; None for a run that begins with its own weights."""
        return None if parent is None else cls(parent, SavedRun.of_weights(parent.folder, parent.step), config)

    @property
    def record(self) -> dict[str, Any]:
        config, step = self.run.config, self.run.payload["step"]
        shared = exported.is_export(self.run.folder)
        path = self.run.folder / exported.FACTS if shared else checkpoint.path_of(self.run.folder / "checkpoints", step)
        return {
            "run": str(self.parent.folder.resolve()),
            "recipe": config.recipe,
            "method": config.method.kind,
            "model": self.parent.model,
            "step": self.run.step_of(self.parent.model),
            "checkpoint": None if shared else step,
            "sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
            "changes": self.config.differences(config),
        }

    def check(self, state: State) -> None:
        """That theta of one start of this run, without replicas, can be the parent's."""
        theta = {k: p[0] for k, p in self.theta.items()} if self.run.config.replicated else self.theta
        if problem := difference(theta, {k: p for k, p in state.theta.params.items() if k != "log_z"}):
            raise UserError(
                f"--init {self.parent.folder} holds another energy than this run has ({problem}); give that run's own "
                f"model options: see 'eblvm runs show {self.parent.folder}'"
            )

    @property
    def theta(self) -> Params:
        thetas = self.run.thetas(self.parent.model)
        return replicas.stack(thetas) if self.run.config.replicated else thetas[0]

    def started(self, state: State) -> tuple[State, list[str]]:
        """The first state of this run with the parent's weights in it, and what was taken over, in words."""
        model, folder = self.parent.model, self.parent.folder
        said = [f"starting from {folder}, its {model} model at step {self.run.step_of(model)}"]
        if self.run.config.replicated and not self._one_to_one:
            said.append(f"{folder} holds replicas: its first one is taken")
        theta = placed(self._for_replicas(self.theta), state.theta.params)
        phi, buffers = (self._for_replicas(tree) for tree in (self.run.phi(model), self.run.buffers(model)))
        if state.phi.params and (problem := difference(phi, state.phi.params)):
            said.append(f"q(h|v) starts anew: {folder} has another one ({problem})")
            phi = {}
        fitting = {k: b for k, b in buffers.items() if k in state.buffers and b.shape == state.buffers[k].shape}
        return state._replace(
            theta=_restarted(state.theta, theta),
            phi=_restarted(state.phi, placed(phi, state.phi.params)),
            buffers=placed(fitting, state.buffers),
        ), said

    @property
    def _one_to_one(self) -> bool:
        ours, theirs = (c.optimisation.count for c in (self.config, self.run.config))
        return self.config.replicated and self.run.config.replicated and ours == theirs

    def _for_replicas(self, tree: Params) -> Params:
        """The parent's tensors for this run's replicas: one each where both have as many, otherwise the first."""
        if self._one_to_one:
            return tree
        first = {k: p[0] for k, p in tree.items()} if self.run.config.replicated else tree
        if not self.config.replicated:
            return first
        count = self.config.optimisation.count
        return {k: p.expand(count, *p.shape) for k, p in first.items()}


def _restarted(weights: Weights, params: Params) -> Weights:
    """Return weights at the start of a run from these parameters, where its averages start too."""
    return weights._replace(params=params, average={k: p.clone() for k, p in params.items()} if weights.average else {})


def difference(got: Params, expected: Params) -> str:
    """The first parameter in which two trees differ, in words; empty where they fit."""
    for name in dict.fromkeys((*expected, *got)):
        if name not in got:
            return f"it has no {name}"
        if name not in expected:
            return f"it has {name}, which this run does not"
        if got[name].shape != expected[name].shape:
            return f"its {name} is {list(got[name].shape)}, expected {list(expected[name].shape)}"
    return ""


def placed(tree: Params, like: Params) -> Params:
    """`like` with copies of what `tree` has of it, on its device and in its dtype."""
    return {k: tree[k].to(p.device, p.dtype, copy=True) if k in tree else p for k, p in like.items()}
