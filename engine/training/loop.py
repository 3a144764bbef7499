"""The training loop: everything that happens in a run, top to bottom. One step is `Update` in methods/update.py."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from eblvm.engine.autodiff import collectives
from eblvm.engine.autodiff.mixed_precision import initial_scale
from eblvm.engine.config import Config
from eblvm.engine.data.dataset import Dataset, check_values
from eblvm.engine.data.input import open_input
from eblvm.engine.device import device_memory, own_device, set_products, set_repeatable, subnormals_as_zero
from eblvm.engine.errors import UserError
from eblvm.engine.methods.grbm.fused import TrainingStep, fused_update_for
from eblvm.engine.methods.micro_batches import micro_batched
from eblvm.engine.methods.types import Objective, State
from eblvm.engine.methods.update import Update, check_payload, state_from, tree
from eblvm.engine.nets.base import Energy
from eblvm.engine.nets.posteriors import Posterior
from eblvm.engine.optim import apex
from eblvm.engine.optim.schedule import step_rates
from eblvm.engine.planning import plan
from eblvm.engine.runs import checkpoint
from eblvm.engine.runs.folder import open_run
from eblvm.engine.runs.parent import PARENT, Parent, begins_at
from eblvm.engine.runs.saved import SavedRun
from eblvm.engine.system import keep_freed_memory
from eblvm.engine.training import distributed, guard, replicas, sizes
from eblvm.engine.training.fork import Fork
from eblvm.engine.training.gpu_defaults import takes_graphs
from eblvm.engine.training.graphs import CudaRecorder, TriedStep
from eblvm.engine.training.guard import Interrupt
from eblvm.engine.training.log import Pace
from eblvm.engine.training.validation import better, validation
from eblvm.engine.training.writer import Writer
from eblvm.kernels.philox import Key
from eblvm.kernels.runtime import dispatch

Q_SAMPLES = 64  # validation samples on which q has to make sense when a run ends


def train(
    config: Config,
    out: Path,
    say: Callable[[str], None] = print,
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
    config.running.check_device()
    if config.optimisation.optimizer == "apex":
        apex.require()
    torch.set_num_threads(config.running.threads)
    with distributed.joined(config.running.device, config.running.timeout), ExitStack() as held:
        held.enter_context(subnormals_as_zero())
        held.enter_context(keep_freed_memory())
        config = config.replaced(device=own_device(config.running.device))
        check_world(config)
        with distributed.shared_mistakes():
            dataset = dataset or config.load_data()
        check_values(dataset, str(getattr(config.dataset, "data", None) or f"data set {config.dataset.kind!r}"))
        batch = config.optimisation.batch
        if batch > len(dataset.train):
            raise UserError(f"got batch={batch}, expected at most the {len(dataset.train)} training samples")
        for model in (energy, posterior):
            distributed.refuse_wrapped(model)
        say = say if distributed.is_first() else silently
        if sentence := dispatch.notice():
            say(sentence)
        set_products(config.model.precision)
        if config.running.on_cuda:
            set_repeatable(config.running.deterministic)
        shape = tuple(dataset.train.shape[1:])
        if config.model.checkpoint == "auto":
            memory = device_memory(config.running.device)
            config = distributed.broadcast_from_rank0(
                lambda: plan.with_checkpoint_chosen(config, shape, collectives.size(), memory)
            )
            micro_batch = config.running.micro_batch or "none"
            say(f"the plan chooses --checkpoint {config.model.checkpoint}, micro-batch {micro_batch}")
        parts = (config.model, config.optimisation, dataset.train, energy, posterior)
        with sizes.countable():
            update = config.method.build(*parts)
        sizes.check_memory(config, update)
        if init is not None or (out / PARENT).exists():
            init = begins_at(init, out)
        fork = None if init is None else Fork.of(init, config)
        if fork is not None:
            fork.check(update.objective.init(Key(0, 0), torch.zeros(batch, *shape)))
        record = None if fork is None else fork.record
        distributed.broadcast_from_rank0(
            lambda: held.enter_context(open_run(config, out, energy, posterior, extend=extend, origin=record)) and None
        )
        show = None if preview is None else Show(preview, out, config, dataset, energy, posterior)
        try:
            return training_loop(config, dataset, update, out, say, fork, show)
        except RuntimeError as error:
            if not plan.out_of_memory(error):
                raise
            raise UserError(f"out of memory: {plan.next_smaller(config, shape, collectives.size())}") from error


def training_loop(
    config: Config,
    dataset: Dataset,
    update: Update,
    out: Path,
    say: Callable[[str], None],
    fork: Fork | None = None,
    show: Show | None = None,
) -> bool:
    # The training step: a pure function, vectorised over the replicas.
    optimisation, running = config.optimisation, config.running
    device, steps = torch.device(running.device), optimisation.steps
    plain, update = update.objective, micro_batched(update, running.micro_batch)
    objective = update.objective
    seed = replicas.seeds(optimisation).to(device)
    training_step = training_step_of(config, update)
    if running.on_cuda and takes_graphs(config, collectives.size()):
        training_step = TriedStep(training_step, CudaRecorder(), say)
    here = collectives.local_slice(optimisation.batch)

    # The state: from the newest good checkpoint, or from the beginning.
    payload, passed_over = distributed.broadcast_from_rank0(
        lambda: checkpoint.newest(out / "checkpoints", check_payload)
    )
    for sentence in passed_over:
        say(f"warning: {sentence}; using an older one")
    source = (config.dataset, dataset, seed, optimisation.batch, running.threads)
    if payload is not None:
        start, best, state = payload["step"], payload["best"], state_from(payload["state"], device)
        distributed.broadcast_from_rank0(lambda: checkpoint.set_aside(out / "checkpoints", start))
        guard.check(start, guard.sizes(state, optimisation.replicated))
        if start >= steps:
            say(f"{out} is complete: {start} steps")
            return True
        say(f"continuing {out} at step {start}")
    else:
        v = open_input(*source).batch(0)
        initial = distributed.broadcast_from_rank0(
            # On the host: what is sent arrives where it was, and that would be rank 0's GPU on every rank.
            lambda: tree(initial_state(config, objective, seed.cpu(), v.cpu(), torch.device("cpu"), fork, say))
        )
        start, best, state = 0, {}, state_from(initial, device)
    saved = payload and payload.get("input")
    batches = open_input(*source, saved, collectives.rank(), collectives.size())

    def content(step: int) -> dict[str, Any]:
        """What a checkpoint holds."""
        return {"step": step, "best": best, "state": tree(state), "input": batches.state()}

    kept = start if payload is not None or fork is not None else None
    writer = Writer(config, out, start, None if fork is None else content(0), kept)
    log = writer.log
    stop, flags = Interrupt(), distributed.Flags(start)
    pace = Pace(start, optimisation.batch, device, log.seconds)
    log.doing("compiling" if running.compile else "preparing")
    validate_every = max(1, steps // running.validations) if running.validations else 0
    try:
        for step in range(start, steps):
            # One step: this process's slice of a minibatch, its noise, the update.
            v = batches.batch(step)
            noise = objective.draw(Key(seed, step), v, here.start, optimisation.batch)
            rates = step_rates(optimisation, step, v, config.method.lower_lr, config.method.unroll_lr)
            state, info = training_step(state, v, noise, rates)
            done = step + 1
            # Agreed, so that all processes save and validate in the same steps.
            failed, stopping, due, validation_due = flags.agreed(
                done,
                writer.failed,
                stop.requested,
                pace.due("checkpoint", running.checkpoint_minutes),
                pace.due("validation", running.validate_minutes),
            )
            if failed:
                writer.wait()
            log.bar.update()
            if step == start:
                log.doing()

            # What is logged and checked leaves the device here and nowhere else.
            last = done == steps
            saving = done % running.checkpoint_every == 0 or last or stopping or due
            validating = (validate_every > 0 and (done % validate_every == 0 or last)) or validation_due
            logging = done % running.log_every == 0 or last or validating
            if saving or logging:
                state = distributed.whole_chains(state)
                values = {name: torch.atleast_1d(x).tolist() for name, x in info.items()}
                if any(values.get("skipped", ())):  # a step of fp16 that overflowed has no other figures
                    values = {name: values[name] for name in ("loss_scale", "skipped")}
                if validating:
                    log.doing("validating")
                    values["validation"] = validation(config, objective, state, dataset)
                    log.doing()
                    pace.did("validation")
                watched = values | guard.sizes(state, optimisation.replicated)
                if last:
                    watched["q"] = guard.q_sizes(plain, state, dataset.floats(dataset.valid[:Q_SAMPLES]))
                guard.check(done, watched, writer.kept, config.method.energy_limit)
            if validating:
                best = better(best, done, values["validation"], state)
            if logging:
                values["lr"] = torch.atleast_1d(rates["theta"]).tolist()
                writer.row(done, values, pace.measured(done))
            every = running.preview_every
            drawing = validating and pace.due("preview", 1) if every is None else every > 0 and done % every == 0
            if drawing and show is not None and distributed.is_first():
                log.doing("drawing")
                log.images(done, show(done, state))
                log.doing()
                pace.did("preview")
            if saving:
                pace.did("checkpoint")
                writer.save(content(done))  # by a thread, while steps go on
            if last or stopping:
                writer.wait()
            if stopping and done < steps:
                say(f"interrupted: saved at step {done} in {out}; the same command continues it")
                return False
    finally:
        writer.close()
        stop.restore()
    return True


Preview = Callable[[SavedRun, bool], dict[str, Path]]  # of a run, and whether it may take long: pictures by name


class Show(NamedTuple):
    """Pictures of a state of a run while it trains. They never change the run's bits."""

    preview: Preview
    out: Path
    config: Config
    dataset: Dataset
    energy: Energy | None
    posterior: Posterior | None

    def __call__(self, done: int, state: State) -> dict[str, Path]:
        payload = {"step": done, "best": {}, "state": tree(state)}
        run = SavedRun(self.out, self.config, payload, self.energy, self.posterior, self.dataset)
        return self.preview(run, self.config.running.preview_every is not None)


def training_step_of(config: Config, update: Update) -> TrainingStep:
    """`update` as this configuration takes it: over its replicas, fused where it has such a form, or compiled.

    It may overwrite the state it is given: keep a copy of what is wanted later."""
    step: TrainingStep = torch.vmap(update.__call__) if config.optimisation.replicated else update.__call__
    if config.running.compile:
        if config.running.memory_budget is not None:
            torch._functorch.config.activation_memory_budget = config.running.memory_budget
        # --graphs captures the compiled step as any other. The compiler's own graphs ("reduce-overhead") own what they
        # return: the state, which goes round, would be copied out of their memory and into it again in every step.
        return torch.compile(step, dynamic=False)
    in_place = replace(update, in_place=True)
    # The fused steps hold their lower steps inside, where nothing can be averaged over processes.
    may_fuse = config.method.fused_step and config.running.fused and collectives.size() == 1
    fused = fused_update_for(in_place) if may_fuse else None
    return fused or (step if config.optimisation.replicated else in_place.__call__)


def check_world(config: Config) -> None:
    """What several processes cannot do, as one sentence each."""
    size, batch = collectives.size(), config.optimisation.batch
    if size == 1:
        return
    if batch % size:
        raise UserError(f"got batch={batch} for {size} processes, expected a multiple of {size}")
    if config.optimisation.replicated or config.running.compile or config.running.graphs:
        raise UserError(
            f"{size} processes train one run with the eager step; remove --replicas, --lr lists, --compile and --graphs"
        )


def silently(sentence: str) -> None:
    """What a process that is not the first says."""


def initial_state(
    config: Config,
    objective: Objective,
    seed: Tensor,
    v: Tensor,
    device: torch.device,
    fork: Fork | None = None,
    say: Callable[[str], None] = silently,
) -> State:
    """The start of every replica from its own seed, or of a fork; the moving averages start at theta and phi."""

    def one(seed: int, v: Tensor) -> State:
        state = objective.init(Key(seed, 0), v)
        averages = config.optimisation.ema is not None
        state = state._replace(
            ema={k: p.clone() for k, p in state.theta.items()} if averages else {},
            phi_ema={k: p.clone() for k, p in state.phi.items()} if averages else {},
            scale=initial_scale(config.model.precision, torch.zeros(())),
        )
        return state_from(tree(state), device, v.dtype)

    if config.optimisation.replicated:
        state: State = replicas.stack([one(int(s), v[r]) for r, s in enumerate(seed)])
    else:
        state = one(int(seed), v)
    if fork is not None:
        state, said = fork.started(state)
        for sentence in said:
            say(sentence)
    return state
