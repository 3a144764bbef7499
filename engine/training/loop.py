"""The training loop: everything that happens in a run, top to bottom. It knows no method and no model."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch

from eblvm.engine import machine
from eblvm.engine.autodiff import collectives
from eblvm.engine.config import Config
from eblvm.engine.data.dataset import Dataset, check_input, check_values
from eblvm.engine.data.input import Input
from eblvm.engine.errors import UserError
from eblvm.engine.methods.base import Info, Rates, Rows, to_tree
from eblvm.engine.nets.base import Energy
from eblvm.engine.nets.posteriors import Posterior
from eblvm.engine.optim import apex
from eblvm.engine.planning import plan
from eblvm.engine.runs.folder import open_run
from eblvm.engine.runs.parent import PARENT, Parent, begins_at
from eblvm.engine.runs.saved import SavedRun
from eblvm.engine.training import distributed, guard, slurm
from eblvm.engine.training.capture import CudaRecorder
from eblvm.engine.training.fork import Fork
from eblvm.engine.training.gpu_defaults import takes_graphs
from eblvm.engine.training.graphs import TriedStep
from eblvm.engine.training.start import Parts, Preview, Progress, Say, initial_state, start_or_resume
from eblvm.engine.training.validation import better, validation
from eblvm.engine.training.writer import Writer
from eblvm.kernels.philox import Key
from eblvm.kernels.runtime import dispatch

Q_SAMPLES = 64  # validation samples on which q has to make sense when a run ends


def train(
    config: Config,
    out: Path,
    say: Say = print,
    *,
    dataset: Dataset | None = None,
    energy: Energy | None = None,
    posterior: Posterior | None = None,
    init: Parent | None = None,
    extend: bool = False,
    preview: Preview | None = None,
) -> bool:
    """Train `config` in folder `out`, continuing what is there. True if the run is complete, False if interrupted.

    `init` names the run whose weights a new one starts from, `extend` lets the run in `out` become longer, `preview`
    makes pictures of a run while it trains.

    Data and models are the recipe's, or your own (docs/models.md); a run continues only with the ones it began with.
    Started by torchrun, each process takes its part of every batch (docs/scale.md), and the first one writes."""
    config.check()
    asked, config = config.running, on_this_machine(config)
    batch = config.optimisation.batch
    with machine.subnormals_as_zero(), machine.keep_freed_memory(), distributed.joined(asked.device, asked.timeout):
        say = say if distributed.is_first() else lambda _: None
        here = collectives.local_slice(batch)
        distributed.check_world(config)
        flags = distributed.Flags()
        with distributed.shared_mistakes():
            dataset = dataset or config.load_data()
        check_input(config.dataset, dataset)
        check_values(dataset, str(getattr(config.dataset, "data", None) or f"data set {config.dataset.kind!r}"))
        if batch > len(dataset.train):
            raise UserError(f"got batch={batch}, expected at most the {len(dataset.train)} training samples")
        distributed.refuse_wrapped(energy)
        distributed.refuse_wrapped(posterior)
        if sentence := dispatch.notice():
            say(sentence)
        shape = tuple(dataset.train.shape[1:])
        if config.model.checkpoint == "auto":
            config = as_planned(config, shape, say)
        with guard.explained(config, shape):
            nets = config.method.nets(config, dataset.train, energy, posterior)
            guard.check_memory(config, nets)
            fork = None
            if init is not None or (out / PARENT).exists():
                fork = Fork.of(begins_at(init, out), config)
            if fork is not None:
                fork.check(initial_state(config, nets, torch.tensor(0), torch.zeros(batch, *shape)))
            parts = Parts(config, dataset, nets, out, say, here, flags, fork, preview, (energy, posterior))
            with locked(parts, extend):
                return training_loop(parts)


def training_loop(parts: Parts) -> bool:
    # The step: a pure function of tensors.
    config, nets, out = parts.config, parts.nets, parts.out
    optimisation, method, device = config.optimisation, config.method, torch.device(config.running.device)
    seed, names = optimisation.seeds().to(device), optimisation.names()
    take_step = config.step.of(config, nets)
    if config.running.on_cuda and takes_graphs(config):
        take_step = TriedStep(take_step, CudaRecorder(), parts.say, config.model.precision)

    # The state: from the newest good checkpoint, or from the beginning.
    with closing(start_or_resume(parts, seed)) as start, guard.interrupts() as signals:
        progress, batches = start.progress, start.batches
        if progress.step >= optimisation.steps:
            return True
        with closing(Writer(config, out, names, progress, start.begun, start.kept)) as writer:
            writer.log.doing("compiling" if config.step.compile else "preparing")
            for step in range(progress.step, optimisation.steps):
                # One step: this process's part of a minibatch, its noise, the update.
                v, key = batches.batch(step), Key(seed, step)
                noise = method.draw(nets, key, Rows.of(key, v, parts.here.start, optimisation.batch))
                rates = optimisation.rates(step, method.rates(), v)
                state, info = take_step(progress.state, v, noise, rates)

                # Once in a while: log, check, validate, draw, save.
                progress = Progress(step + 1, state, progress.best)
                progress, due = after_step(parts, progress, info, rates, writer, batches, signals)
                if due.leaving and not due.last:
                    parts.say(f"interrupted: saved at step {progress.step} in {out}; the same command continues it")
                    if due.requeueing and distributed.is_first():
                        slurm.requeue(parts.say)
                    return False
    return True


class Due(NamedTuple):
    """Tasks that are due after a step. All processes agree, so that they save and validate in the same steps."""

    last: bool
    leaving: bool
    requeueing: bool
    logging: bool
    validating: bool
    drawing: bool
    saving: bool


def due_after(parts: Parts, done: int, writer: Writer, signals: list[int]) -> Due:
    running, steps, pace = parts.config.running, parts.config.optimisation.steps, writer.pace
    asked = (
        writer.error is not None,
        bool(signals),
        running.requeue and any(number in machine.WARNINGS for number in signals),
        pace.due("checkpoint", running.checkpoint_minutes),
        pace.due("validation", running.validate_minutes),
    )
    failed, leaving, requeueing, save, validate = asked if collectives.size() == 1 else parts.flags.agreed(done, *asked)
    if failed:
        writer.wait()
    last, every = done == steps, max(1, steps // running.validations) if running.validations else 0
    validating = (every > 0 and (done % every == 0 or last)) or validate
    pictures = running.preview_every
    drawing = validating and pace.due("preview", 1) if pictures is None else pictures > 0 and done % pictures == 0
    return Due(
        last,
        leaving,
        requeueing,
        logging=done % running.log_every == 0 or last or validating,
        validating=validating,
        drawing=drawing,
        saving=done % running.checkpoint_every == 0 or last or leaving or save,
    )


def after_step(
    parts: Parts, progress: Progress, info: Info, rates: Rates, writer: Writer, batches: Input, signals: list[int]
) -> tuple[Progress, Due]:
    """Log, check, validate, draw and save what is due, which is returned. Nothing else leaves the device."""
    config, log, pace, (step, state, best) = parts.config, writer.log, writer.pace, progress
    due = due_after(parts, step, writer, signals)
    log.stepped()
    if due.saving:
        pace.did("checkpoint")
    if due.saving or due.logging:
        if state.chain:
            state = distributed.whole_chains(state)
        values = {name: torch.atleast_1d(x).tolist() for name, x in info.items()}
        if any(values.get("skipped", ())):  # a step of fp16 that overflowed has no other figures
            values = {name: values[name] for name in ("loss_scale", "skipped")}
        if due.validating:
            with log.doing_now("validating"):
                values["validation"] = validation(config, parts.nets, state, parts.dataset)
            pace.did("validation")
        watched = values | guard.sizes(state, config.optimisation.replicated)
        if due.last:
            watched["q"] = guard.q_sizes(parts.nets, state, parts.dataset.floats(parts.dataset.valid[:Q_SAMPLES]))
        guard.check(step, watched, writer.kept, config.method.energy_limit)
        if due.validating:
            best = better(best, step, values["validation"], state)
        if due.logging:
            values["lr"] = torch.atleast_1d(rates["theta"]).tolist()
            writer.row(step, values, pace.measured(step))
    progress = Progress(step, state, best)
    if due.drawing and parts.preview is not None and distributed.is_first():
        with log.doing_now("drawing"):
            log.images(step, pictures(parts, parts.preview, progress))
        pace.did("preview")
    if due.saving:
        writer.save(progress, batches.state())  # by a thread, while steps go on
    if due.last or due.leaving:
        writer.wait()
    return progress, due


def pictures(parts: Parts, preview: Preview, progress: Progress) -> dict[str, Path]:
    """Return pictures of a run while it trains, by name. They never change its bits."""
    payload = {"step": progress.step, "best": {}, "state": to_tree(progress.state)}
    run = SavedRun(parts.out, parts.config, payload, *parts.custom, parts.dataset)
    return preview(run, parts.config.running.preview_every is not None)


def on_this_machine(config: Config) -> Config:
    """Return the configuration with this process's own device, set up as the run asks for."""
    if config.optimisation.optimizer == "apex":
        apex.require()
    if config.running.requeue:
        slurm.require()
    running, device = config.running, machine.own_device(config.running.device)
    torch.set_num_threads(running.threads)
    machine.set_products(config.model.precision)
    if running.on_cuda:
        machine.set_repeatable(running.deterministic)
    return config.replaced(device=device)


def as_planned(config: Config, shape: tuple[int, ...], say: Say) -> Config:
    """Return the configuration with the checkpointing and the micro-batch that fit the device, by the plan."""
    memory = machine.device_memory(config.running.device)
    choose: Callable[[], Config] = partial(plan.with_checkpoint_chosen, config, shape, collectives.size(), memory)
    config = distributed.broadcast_from_rank0(choose)
    say(f"the plan chooses --checkpoint {config.model.checkpoint}, micro-batch {config.step.micro_batch or 'none'}")
    return config


@contextmanager
def locked(parts: Parts, extend: bool) -> Iterator[None]:
    record = None if parts.fork is None else parts.fork.record
    opened = partial(open_run, parts.config, parts.out, *parts.custom, extend=extend, origin=record)
    lock: list[Any] = []
    distributed.on_rank0(lambda: lock.append(opened()))
    try:
        yield
    finally:
        for held in lock:
            held.close()
