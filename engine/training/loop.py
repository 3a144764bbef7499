"""The training loop: everything that happens in a run, top to bottom. It knows no method and no model."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch

from eblvm.engine.autodiff import collectives
from eblvm.engine.config import Config
from eblvm.engine.data.dataset import Dataset, check_input, check_values
from eblvm.engine.data.input import Input, open_input
from eblvm.engine.errors import UserError
from eblvm.engine.machine import (
    device_memory,
    keep_freed_memory,
    own_device,
    set_products,
    set_repeatable,
    subnormals_as_zero,
)
from eblvm.engine.methods.base import Info, Nets, Rates, Rows, State, TrainingStep
from eblvm.engine.nets.base import Energy
from eblvm.engine.nets.posteriors import Posterior
from eblvm.engine.planning import plan
from eblvm.engine.runs import checkpoint
from eblvm.engine.runs.folder import open_run
from eblvm.engine.runs.parent import Parent, begins_at
from eblvm.engine.runs.saved import SavedRun
from eblvm.engine.runs.state import check_payload, from_tree, to_tree
from eblvm.engine.training import distributed, guard, sizes
from eblvm.engine.training.fork import Fork
from eblvm.engine.training.gpu_defaults import takes_graphs
from eblvm.engine.training.graphs import CudaRecorder, TriedStep
from eblvm.engine.training.log import Pace
from eblvm.engine.training.start import initial_state
from eblvm.engine.training.validation import better, validation
from eblvm.engine.training.writer import Writer
from eblvm.kernels.philox import Key
from eblvm.kernels.runtime import dispatch

Q_SAMPLES = 64  # validation samples on which q has to make sense when a run ends
Say = Callable[[str], None]
Preview = Callable[[SavedRun, bool], dict[str, Path]]  # of a run, and whether it may take long: pictures by name


class Parts(NamedTuple):
    """Everything that a run is made of."""

    config: Config
    dataset: Dataset
    nets: Nets
    out: Path
    say: Say
    fork: Fork | None
    preview: Preview | None
    custom: tuple[Energy | None, Posterior | None]  # models of the user's own


class Progress(NamedTuple):
    """Where a run is: its state after `step` steps, and the best model so far."""

    step: int
    state: State
    best: dict[str, Any]


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
    Started by torchrun, each process takes its part of every batch (docs/scale.md), and the first one writes.
    """
    config.check()
    config.optimisation.theta_optimizer().require()
    torch.set_num_threads(config.running.threads)
    with distributed.joined(config.running.device, config.running.timeout), subnormals_as_zero(), keep_freed_memory():
        say = say if distributed.is_first() else silent
        config, dataset = on_this_process(config, dataset)
        for model in (energy, posterior):
            distributed.refuse_wrapped(model)
        if sentence := dispatch.notice():
            say(sentence)
        shape = tuple(dataset.train.shape[1:])
        if config.model.checkpoint == "auto":
            config = as_planned(config, shape, say)
        with sizes.countable():
            nets = config.method.nets(config, dataset.train, energy, posterior)
        sizes.check_memory(config, nets)
        fork = Fork.of(begins_at(init, out), config)
        if fork is not None:
            fork.check(initial_state(config, nets, torch.tensor(0), torch.zeros(config.optimisation.batch, *shape)))
        parts = Parts(config, dataset, nets, out, say, fork, preview, (energy, posterior))
        with locked(parts, extend), memory_advice(config, shape):
            return training_loop(parts)


def training_loop(parts: Parts) -> bool:
    # The step: a pure function of tensors, with this process's slice of every batch and of its noise.
    config, nets, say, out = parts.config, parts.nets, parts.say, parts.out
    optimisation, method, device = config.optimisation, config.method, torch.device(config.running.device)
    seed, here = optimisation.seeds().to(device), collectives.local_slice(optimisation.batch)
    take_step = training_step(config, nets, say)

    # The state: from the newest good checkpoint, or from the beginning.
    saved = distributed.broadcast_from_rank0(partial(newest_checkpoint, out, say))
    source = (config.dataset, parts.dataset, seed, optimisation.batch, config.running.threads)
    position = saved["input"] if saved else {}
    with closing(open_input(*source, position, collectives.rank(), collectives.size())) as batches:
        progress = start_or_resume(parts, saved, batches)
        if saved and progress.step >= optimisation.steps:
            say(f"{out} is complete: {progress.step} steps")
            return True
        begun = content(progress, position) if parts.fork and not saved else None
        kept = None if saved is None and parts.fork is None else progress.step
        with guard.interrupts() as interrupted, Writer(config, out, progress.step, begun, kept) as writer:
            pace = Pace(progress.step, optimisation.batch, device, writer.log.seconds)
            flags = distributed.Flags(progress.step)
            writer.log.doing("compiling" if config.step.compile else "preparing")
            for step in range(progress.step, optimisation.steps):
                # One step: a minibatch, its noise, the update.
                v, key = batches.batch(step), Key(seed, step)
                noise = method.draw(nets, key, Rows.of(key, v, here.start, optimisation.batch))
                rates = optimisation.rates(step, method.rates(), v)
                state, info = take_step(progress.state, v, noise, rates)
                progress = Progress(step + 1, state, progress.best)

                # Once in a while: log, check, validate, draw, save.
                due = due_after(config, progress.step, flags, writer, interrupted, pace)
                progress = after_step(parts, progress, info, rates, due, writer, pace, batches)
                if due.leaving and progress.step < optimisation.steps:
                    say(f"interrupted: saved at step {progress.step} in {out}; the same command continues it")
                    return False
    return True


def start_or_resume(parts: Parts, saved: dict[str, Any] | None, batches: Input) -> Progress:
    """Return where the run goes on: at its checkpoint, or at the start of every replica from its own seed."""
    config, out, say = parts.config, parts.out, parts.say
    device, optimisation = torch.device(config.running.device), config.optimisation
    if saved is not None:
        step, state = saved["step"], from_tree(saved["state"], device)
        distributed.on_rank0(partial(checkpoint.set_aside, out / "checkpoints", step))
        guard.check(step, guard.sizes(state, config.replicated))
        if step < optimisation.steps:
            say(f"continuing {out} at step {step}")
        return Progress(step, state, saved["best"])

    def start() -> dict[str, Any]:
        # On the host: what is sent arrives where it was, and that would be rank 0's GPU on every rank.
        return to_tree(initial_state(config, parts.nets, optimisation.seeds(), v.cpu(), parts.fork, say))

    v = collectives.gather_rows(batches.batch(0))  # chains start at the whole first minibatch
    return Progress(0, from_tree(distributed.broadcast_from_rank0(start), device), {})


class Due(NamedTuple):
    """What is to be done after a step. All processes agree, so that they save and validate in the same steps."""

    last: bool
    leaving: bool
    logging: bool
    validating: bool
    drawing: bool
    saving: bool


def due_after(
    config: Config, done: int, flags: distributed.Flags, writer: Writer, interrupted: Callable[[], bool], pace: Pace
) -> Due:
    running, steps = config.running, config.optimisation.steps
    failed, leaving, save, validate = flags.agreed(
        done,
        writer.failed,
        interrupted(),
        pace.due("checkpoint", running.checkpoint_minutes),
        pace.due("validation", running.validate_minutes),
    )
    if failed:
        writer.wait()
    last, every = done == steps, max(1, steps // running.validations) if running.validations else 0
    validating = (every > 0 and (done % every == 0 or last)) or validate
    pictures = running.preview_every
    drawing = validating and pace.due("preview", 1) if pictures is None else pictures > 0 and done % pictures == 0
    return Due(
        last,
        leaving,
        logging=done % running.log_every == 0 or last or validating,
        validating=validating,
        drawing=drawing,
        saving=done % running.checkpoint_every == 0 or last or leaving or save,
    )


def after_step(
    parts: Parts, progress: Progress, info: Info, rates: Rates, due: Due, writer: Writer, pace: Pace, batches: Input
) -> Progress:
    """Log, check, validate, draw and save what is due. Nothing leaves the device anywhere else."""
    config, log = parts.config, writer.log
    step, state, best = progress
    log.stepped()
    if due.saving or due.logging:
        state = distributed.whole_chains(state)
        values = {name: torch.atleast_1d(x).tolist() for name, x in info.items()}
        if any(values.get("skipped", ())):  # a step of fp16 that overflowed has no other figures
            values = {name: values[name] for name in ("loss_scale", "skipped")}
        if due.validating:
            with log.doing_now("validating"):
                values["validation"] = validation(config, parts.nets, state, parts.dataset)
            pace.did("validation")
        watched = values | guard.sizes(state, config.replicated)
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
        pace.did("checkpoint")
        writer.save(content(progress, batches.state()))  # by a thread, while steps go on
    if due.last or due.leaving:
        writer.wait()
    return progress


def content(progress: Progress, position: dict[str, Any]) -> dict[str, Any]:
    """Return what a checkpoint holds."""
    return {"step": progress.step, "best": progress.best, "state": to_tree(progress.state), "input": position}


def pictures(parts: Parts, preview: Preview, progress: Progress) -> dict[str, Path]:
    """Return pictures of a run while it trains, by name. They never change its bits."""
    payload = {"step": progress.step, "best": {}, "state": to_tree(progress.state)}
    run = SavedRun(parts.out, parts.config, payload, *parts.custom, parts.dataset)
    return preview(run, parts.config.running.preview_every is not None)


def training_step(config: Config, nets: Nets, say: Say) -> TrainingStep:
    """Return the step as this configuration asks for it, as a CUDA graph where it pays."""
    device, dtype = torch.device(config.running.device), getattr(torch, config.running.dtype)
    step = config.step.of(config.method, nets, config.optimisation, device, dtype)
    if config.running.on_cuda and takes_graphs(config, collectives.size()):
        return TriedStep(step, CudaRecorder(), say)
    return step


def newest_checkpoint(out: Path, say: Say) -> dict[str, Any] | None:
    payload, passed_over = checkpoint.newest(out / "checkpoints", check_payload)
    for sentence in passed_over:
        say(f"warning: {sentence}; using an older one")
    return payload


def on_this_process(config: Config, dataset: Dataset | None) -> tuple[Config, Dataset]:
    """Return the configuration for this process's device, and its data, checked; refuse what processes cannot do."""
    config = config.replaced(device=own_device(config.running.device))
    distributed.check_world(config)
    with distributed.shared_mistakes():
        dataset = dataset or config.load_data()
    check_input(config.dataset, dataset)
    check_values(dataset, str(getattr(config.dataset, "data", None) or f"data set {config.dataset.kind!r}"))
    batch = config.optimisation.batch
    if batch > len(dataset.train):
        raise UserError(f"got batch={batch}, expected at most the {len(dataset.train)} training samples")
    set_products(config.model.precision)
    if config.running.on_cuda:
        set_repeatable(config.running.deterministic)
    return config, dataset


def as_planned(config: Config, shape: tuple[int, ...], say: Say) -> Config:
    """Return the configuration with the checkpointing and the micro-batch that fit the device, by the plan."""
    memory = device_memory(config.running.device)
    config = distributed.broadcast_from_rank0(
        lambda: plan.with_checkpoint_chosen(config, shape, collectives.size(), memory)
    )
    say(f"the plan chooses --checkpoint {config.model.checkpoint}, micro-batch {config.step.micro_batch or 'none'}")
    return config


@contextmanager
def locked(parts: Parts, extend: bool) -> Iterator[None]:
    """Keep the run's folder locked by the first process."""
    record = None if parts.fork is None else parts.fork.record
    opened = partial(open_run, parts.config, parts.out, *parts.custom, extend=extend, origin=record)
    lock: list[Any] = []
    distributed.on_rank0(lambda: lock.append(opened()))
    try:
        yield
    finally:
        for held in lock:
            held.close()


@contextmanager
def memory_advice(config: Config, shape: tuple[int, ...]) -> Iterator[None]:
    """Turn torch's errors that memory ran out into one that says which setting needs less."""
    try:
        yield
    except RuntimeError as error:
        if not plan.out_of_memory(error):
            raise
        raise UserError(f"out of memory: {plan.next_smaller(config, shape, collectives.size())}") from error


def silent(sentence: str) -> None:
    """Say nothing: there is one process that speaks."""
