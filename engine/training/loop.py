"""The training loop: everything that happens in a run, top to bottom. One step is `Update` in objectives/state.py."""

import fcntl
import json
import signal
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import IO, Any

import torch
from torch import Tensor

from eblvm.engine.autodiff import collectives
from eblvm.engine.config import Config
from eblvm.engine.data import Dataset, load, open_input
from eblvm.engine.errors import UserError
from eblvm.engine.methods import Objective, State, Update, build
from eblvm.engine.methods.grbm.fused import TrainingStep, fused_update_for
from eblvm.engine.methods.micro_batches import in_pieces
from eblvm.engine.methods.update import state_from, tree
from eblvm.engine.models.energy import Energy, Params
from eblvm.engine.models.posteriors import Posterior
from eblvm.engine.optim.loss_scale import initial_scale
from eblvm.engine.optim.schedule import step_rates
from eblvm.engine.planning import plan
from eblvm.engine.training import checkpoint, distributed, guard, replicas
from eblvm.engine.training.log import Log, Silence
from eblvm.engine.training.precision import set_products
from eblvm.engine.training.run import read_config
from eblvm.kernels.philox import Key

LOCK = ".lock"
LEFT_BY_A_KILL = {LOCK, ".config.json.tmp"}  # all that a run killed before its first write leaves behind
VALIDATION_SEED = 2**40  # validation noise is the same for every run and step


def train(
    config: Config,
    out: Path,
    say: Callable[[str], None] = print,
    *,
    dataset: Dataset | None = None,
    energy: Energy | None = None,
    posterior: Posterior | None = None,
) -> bool:
    """Train `config` in folder `out`, continuing what is there. True if the run is complete, False if interrupted.

    Data and models are the recipe's, or your own (docs/models.md); a run continues only with the ones it began with.
    Started by torchrun, each process takes its part of every batch (docs/scale.md), and the first one writes.
    """
    config.validate()
    torch.set_num_threads(config.threads)
    with distributed.joined(config.device), ExitStack() as held:
        check_world(config)
        dataset = dataset or load(config)
        if config.batch > len(dataset.train):
            raise UserError(f"got batch={config.batch}, expected at most the {len(dataset.train)} training samples")
        for model in (energy, posterior):
            distributed.refuse_wrapped(model)
        say = say if distributed.is_first() else silently
        set_products(config.precision)
        shape = tuple(dataset.train.shape[1:])
        if config.checkpoint == "auto":
            config = distributed.from_first(
                lambda: plan.settled(config, shape, collectives.size(), plan.device_memory(config.device))
            )
            say(f"the plan chooses --checkpoint {config.checkpoint}, micro-batch {config.micro_batch or 'none'}")
        update = build(config, dataset, energy, posterior)
        distributed.from_first(lambda: held.enter_context(open_run(config, out)) and None)
        try:
            return training_loop(config, dataset, update, out, say)
        except RuntimeError as error:
            if not plan.out_of_memory(error):
                raise
            raise UserError(f"out of memory: {plan.next_smaller(config, shape, collectives.size())}") from error


def training_loop(config: Config, dataset: Dataset, update: Update, out: Path, say: Callable[[str], None]) -> bool:
    # The training step: a pure function, vectorised over the replicas.
    device = torch.device(config.device)
    update = in_pieces(update, config.micro_batch)
    objective = update.objective
    seed = replicas.seeds(config)
    training_step = training_step_of(config, update)
    share = distributed.part(config.batch)

    # The state: from the newest good checkpoint, or from the beginning.
    payload, passed_over = distributed.from_first(lambda: checkpoint.newest(out / "checkpoints"))
    for sentence in passed_over:
        say(f"warning: {sentence}; using an older one")
    if payload is not None:
        start, best, state = payload["step"], payload["best"], state_from(payload["state"], device)
        distributed.from_first(lambda: checkpoint.set_aside(out / "checkpoints", start))
        if start >= config.steps:
            say(f"{out} is complete: {start} steps")
            return True
        say(f"continuing {out} at step {start}")
    else:
        v = open_input(config, dataset, seed).batch(0)
        begun = distributed.from_first(lambda: tree(initial_state(config, objective, seed, v, device)))
        start, best, state = 0, {}, state_from(begun, device)
    saved = payload and payload.get("input")
    batches = open_input(config, dataset, seed, saved, collectives.rank(), collectives.size())

    first = distributed.is_first()
    if first:
        write_config(config, out)
    stop = Interrupt()
    log = Log(out, start, config.steps, f"{config.recipe} {config.method}") if first else Silence()
    validate_every = max(1, config.steps // config.validations) if config.validations else 0
    try:
        for step in range(start, config.steps):
            # One step: this process's part of a minibatch, its noise, the update.
            v = batches.batch(step)
            noise = objective.draw(Key(seed, step), v, share.start, config.batch)
            state, info = training_step(state, v, noise, step_rates(config, step, v))
            done, stopping = step + 1, distributed.anywhere(stop.requested)
            log.bar.update()

            # What is logged and checked leaves the device here and nowhere else.
            last = done == config.steps
            saving = done % config.checkpoint_every == 0 or last or stopping
            validating = validate_every > 0 and (done % validate_every == 0 or last)
            logging = done % config.log_every == 0 or last or validating
            if saving or logging:
                values = {name: torch.atleast_1d(x).tolist() for name, x in info.items()}
                if validating:
                    values["validation"] = validation(config, objective, state, dataset)
                largest = torch.vmap(magnitude) if config.replicated else magnitude
                theta = torch.atleast_1d(largest(state.theta)).tolist()
                guard.check(done, values | {"theta": theta}, newest_step(out))
            if validating:
                best = better(best, done, values["validation"], state)
            if logging:
                log.write(done, values)
            if saving and first:
                payload = {"step": done, "best": best, "state": tree(state), "input": batches.state()}
                checkpoint.save(out / "checkpoints", done, payload, config.keep)
            if stopping and done < config.steps:
                say(f"interrupted: saved at step {done} in {out}; the same command continues it")
                return False
    finally:
        log.close()
        stop.restore()
    return True


def training_step_of(config: Config, update: Update) -> TrainingStep:
    """`update` as this configuration takes it: over its replicas, fused where it has such a form, or compiled.

    It may spend the state it is given: keep a copy of what is wanted later."""
    step: TrainingStep = torch.vmap(update.__call__) if config.replicated else update.__call__
    if config.compile:
        if config.unroll_memory == "compiled":
            torch._functorch.config.activation_memory_budget = config.memory_budget
        return torch.compile(step, dynamic=False)
    in_place = replace(update, in_place=True)
    # The fused steps hold their lower steps inside, where nothing can be averaged over processes.
    fused = fused_update_for(in_place) if config.fused and collectives.size() == 1 else None
    return fused or (step if config.replicated else in_place.__call__)


def check_world(config: Config) -> None:
    """What several processes cannot do, as one sentence each."""
    size = collectives.size()
    if size == 1:
        return
    if config.batch % size:
        raise UserError(f"got batch={config.batch} for {size} processes, expected a multiple of {size}")
    if config.replicated or config.compile:
        raise UserError(
            f"{size} processes train one run with the eager step; leave --replicas, --lr lists and --compile"
        )
    if config.method.endswith("ksd"):
        raise UserError(f"method {config.method!r} pairs the samples of one process; start it without torchrun")
    if config.method == "pcd":
        raise UserError("method 'pcd' keeps its chains in one process; use 'cd', or start it without torchrun")


def silently(sentence: str) -> None:
    """What a process that is not the first says."""


def open_run(config: Config, out: Path) -> IO[str]:
    """Make the run folder, or see that the one there is of the same configuration. Gives the folder's lock."""
    if (out / "config.json").exists():
        differences = config.differences(read_config(out))
        if differences:
            raise UserError(
                f"{out} holds a run of another configuration ({'; '.join(differences)}); "
                "give the same options to continue it, or another --out for a new run"
            )
    elif out.exists() and not (out.is_dir() and all(p.name in LEFT_BY_A_KILL for p in out.iterdir())):
        raise UserError(f"{out} exists and is not a run folder; nothing was overwritten: give another --out")
    out.mkdir(parents=True, exist_ok=True)
    lock = (out / LOCK).open("w")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        lock.close()
        raise UserError(f"{out} is being trained by another process; wait for it, or give another --out") from None
    if not (out / "config.json").exists():
        write_config(config, out)
    return lock


def write_config(config: Config, out: Path) -> None:
    checkpoint.write_atomic(out / "config.json", (json.dumps(config.to_json(), indent=2) + "\n").encode())


def initial_state(config: Config, objective: Objective, seed: Tensor, v: Tensor, device: torch.device) -> State:
    """The start of every replica from its own seed; theta's moving average starts at theta."""

    def one(seed: int, v: Tensor) -> State:
        state = objective.init(Key(seed, 0), v)
        state = state._replace(
            ema={k: p.clone() for k, p in state.theta.items()} if config.ema is not None else {},
            scale=initial_scale(config.precision if config.model == "deep" else "fp32", torch.zeros(())),
        )
        return state_from(tree(state), device, v.dtype)

    if not config.replicated:
        return one(int(seed), v)
    return replicas.stack([one(int(s), v[r]) for r, s in enumerate(seed)])


@torch.no_grad()
def validation(config: Config, objective: Objective, state: State, dataset: Dataset) -> list[float]:
    """The objective's own loss on the validation set, by replica; in pieces where images or pairs fill the memory."""
    piece = config.batch if dataset.valid.dim() > 2 or config.method.endswith("ksd") else len(dataset.valid)
    states = [replicas.pick(state, r) for r in range(len(replicas.names(config)))] if config.replicated else [state]
    totals = [0.0] * len(states)
    for i, chunk in enumerate(dataset.valid.split(piece)):
        share = distributed.part(len(chunk))
        v = dataset.floats(chunk[share])
        if len(v):
            noise = objective.draw(Key(VALIDATION_SEED, i), v, share.start, len(chunk))
            losses = [float(objective.validation(s, v, noise)) for s in states]
            totals = [t + loss * len(v) for t, loss in zip(totals, losses, strict=True)]
    return [total / len(dataset.valid) for total in distributed.total(totals)]


def better(best: dict[str, Any], step: int, values: list[float], state: State) -> dict[str, Any]:
    """The best model by validation loss, for each replica: {value, step, theta, phi, ema, buffers}, one entry each."""
    models = {"theta": state.theta, "phi": state.phi, "ema": state.ema, "buffers": state.buffers}
    if not best:
        copied = {part: {k: p.clone() for k, p in models[part].items()} for part in models}
        return {"value": values, "step": [step] * len(values), **copied}
    improved = [new < old for new, old in zip(values, best["value"], strict=True)]
    choose = torch.tensor(improved if len(improved) > 1 else improved[0])

    def newer(new: Tensor, old: Tensor) -> Tensor:
        return torch.where(choose.view(-1, *[1] * (new.dim() - 1)).to(new.device) if choose.dim() else choose, new, old)

    return {
        "value": [new if i else old for i, new, old in zip(improved, values, best["value"], strict=True)],
        "step": [step if i else old for i, old in zip(improved, best["step"], strict=True)],
        **{part: {k: newer(p, best[part][k].to(p.device)) for k, p in models[part].items()} for part in models},
    }


def magnitude(theta: Params) -> Tensor:
    """The largest absolute parameter."""
    return torch.stack([p.abs().max() for p in theta.values()]).max()


def newest_step(out: Path) -> int | None:
    return next(iter(checkpoint.steps(out / "checkpoints")), None)


class Interrupt:
    """SIGINT and SIGTERM ask the loop to save and leave; a second SIGINT ends at once."""

    def __init__(self) -> None:
        self.requested = False
        self._before = {s: signal.signal(s, self._ask) for s in (signal.SIGINT, signal.SIGTERM)}

    def _ask(self, number: int, frame: FrameType | None) -> None:
        if self.requested and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.requested = True

    def restore(self) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
