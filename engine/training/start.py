"""The parts of a run, and its start: at its newest checkpoint, at the first state of every replica, or at
another run's weights."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from eblvm.engine.autodiff import collectives, mixed_precision
from eblvm.engine.config import Config
from eblvm.engine.data.dataset import Dataset
from eblvm.engine.data.input import Input, open_input
from eblvm.engine.methods.base import Nets, State, from_tree, to_tree
from eblvm.engine.nets.base import Energy
from eblvm.engine.nets.posteriors import Posterior
from eblvm.engine.optim import replicas
from eblvm.engine.optim.base import Weights
from eblvm.engine.runs import checkpoint
from eblvm.engine.runs.checkpoint import check_payload
from eblvm.engine.runs.saved import SavedRun
from eblvm.engine.training import distributed, guard
from eblvm.engine.training.fork import Fork
from eblvm.kernels.philox import Key

Say = Callable[[str], None]
Preview = Callable[[SavedRun, bool], dict[str, Path]]  # of a run, and whether it may take long: pictures by name


class Parts(NamedTuple):
    config: Config
    dataset: Dataset
    nets: Nets
    out: Path
    say: Say
    here: slice  # this process's part of every batch
    flags: distributed.Flags  # what any process asks for
    fork: Fork | None
    preview: Preview | None
    custom: tuple[Energy | None, Posterior | None]  # models of the user's own


class Progress(NamedTuple):
    """Progress of a run: its state after `step` steps, and the best model so far."""

    step: int
    state: State
    best: dict[str, Any]


class Start(NamedTuple):
    """Start of a run, and its input, opened there and to be closed."""

    progress: Progress
    batches: Input
    begun: dict[str, Any] | None  # of a fork, which saves its first state: the position of the input there
    kept: int | None  # the step of the newest checkpoint in the folder

    def close(self) -> None:
        self.batches.close()


def start_or_resume(parts: Parts, seed: Tensor) -> Start:
    config, out, say = parts.config, parts.out, parts.say
    optimisation, device = config.optimisation, torch.device(config.running.device)
    saved = distributed.broadcast_from_rank0(partial(newest_checkpoint, out, say))
    position = saved["input"] if saved else {}
    source = (config.dataset, parts.dataset, seed, optimisation.batch, config.running.threads)
    batches = open_input(*source, position, collectives.rank(), collectives.size())
    try:
        if saved is not None:
            progress = Progress(saved["step"], from_tree(saved["state"], device), saved["best"])
            distributed.on_rank0(partial(checkpoint.set_aside, out / "checkpoints", progress.step))
            guard.check(progress.step, guard.sizes(progress.state, config.replicated))
            finished = progress.step >= optimisation.steps
            say(
                f"{out} is complete: {progress.step} steps" if finished else f"continuing {out} at step {saved['step']}"
            )
            return Start(progress, batches, None, progress.step)
        v = batches.batch(0)
        if collectives.size() > 1:
            v = collectives.gather_rows(v.movedim(seed.dim(), 0)).movedim(0, seed.dim())  # chains start at all of it
        # On the host: what is sent arrives where it was, and that would be rank 0's GPU on every rank.
        first = partial(initial_state, config, parts.nets, optimisation.seeds(), v.cpu(), parts.fork, say)
        state = from_tree(distributed.broadcast_from_rank0(lambda: to_tree(first())), device)
        forked = parts.fork is not None
        return Start(Progress(0, state, {}), batches, position if forked else None, 0 if forked else None)
    except BaseException:
        batches.close()
        raise


def newest_checkpoint(out: Path, say: Say) -> dict[str, Any] | None:
    payload, passed_over = checkpoint.newest(out / "checkpoints", check_payload)
    for sentence in passed_over:
        say(f"warning: {sentence}; using an older one")
    return payload


def initial_state(
    config: Config,
    nets: Nets,
    seeds: Tensor,
    v: Tensor,
    fork: Fork | None = None,
    say: Say = print,
    device: torch.device | str = "cpu",
) -> State:
    """Return the start of every replica from its own seed and its first batch v, or of a fork; averages start there."""

    def one(seed: int, v: Tensor) -> State:
        state = config.method.init(nets, Key(seed, 0), v, config.optimisation.theta_optimizer())
        state = state._replace(theta=averaging(state.theta), phi=averaging(state.phi))
        if config.model.precision == "fp16":
            state = state._replace(scale=mixed_precision.initial_scale(torch.zeros(())))
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
