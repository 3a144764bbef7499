"""The training loop: everything that happens in a run, top to bottom. One step is `Update` in objectives/state.py."""

import json
import signal
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch import Tensor

from eblvm.engine import checkpoint, guard, replicas
from eblvm.engine.config import Config
from eblvm.engine.data import Order, load
from eblvm.engine.errors import UserError
from eblvm.engine.log import Log
from eblvm.engine.models.energy import Params
from eblvm.engine.objectives import Objective, State, build
from eblvm.engine.objectives.estimators import Rates
from eblvm.engine.objectives.state import state_from, tree
from eblvm.engine.run import read_config
from eblvm.engine.schedule import factor
from eblvm.kernels.philox import Key

VALIDATION_SEED = 2**40  # validation noise is the same for every run and step


def train(config: Config, out: Path, say: Callable[[str], None] = print) -> bool:
    """Train `config` in folder `out`, continuing what is there. True if the run is complete, False if interrupted."""
    # The run: its data, its training step as a pure function, its folder.
    config.validate()
    device = torch.device(config.device)
    if device.type == "cuda" and not torch.cuda.is_available():
        raise UserError("got --device cuda, but torch sees no CUDA device here; use --device cpu")
    torch.set_num_threads(config.threads)
    dataset = load(config)
    if config.batch > len(dataset.train):
        raise UserError(f"got batch={config.batch}, expected at most the {len(dataset.train)} training samples")
    update = build(config, dataset)
    objective = update.objective
    seed = replicas.seeds(config)
    training_step = torch.vmap(update.__call__) if config.replicated else update.__call__
    if config.compile:
        training_step = torch.compile(training_step, dynamic=False)
    open_run(config, out)

    # The state: from the newest good checkpoint, or from the beginning.
    order = Order(seed, len(dataset.train), config.batch)
    payload, passed_over = checkpoint.newest(out / "checkpoints")
    for sentence in passed_over:
        say(f"warning: {sentence}; using an older one")
    if payload is not None:
        start, best, state = payload["step"], payload["best"], state_from(payload["state"], device)
        if start >= config.steps:
            say(f"{out} is complete: {start} steps")
            return True
        say(f"continuing {out} at step {start}")
    else:
        v = dataset.train[order.indices(0).to(device)]
        start, best, state = 0, {}, initial_state(config, objective, seed, v, device)

    # Learning rates are tensors, so that neither vmap nor compile treats a schedule as a new program.
    rate = replicas.learning_rates(config, dataset.train.dtype).to(device)
    lower = rate if config.lower_lr is None else torch.full_like(rate, config.lower_lr)
    unrolled = lower if config.unroll_lr is None else torch.full_like(rate, config.unroll_lr)

    stop = Interrupt()
    log = Log(out, start, config.steps, f"{config.recipe} {config.method}")
    validate_every = config.steps // config.validations if config.validations else 0
    try:
        for step in range(start, config.steps):
            # One step: a minibatch, its noise, the update.
            v = dataset.train[order.indices(step).to(device)]
            noise = objective.draw(Key(seed, step), v, 0)
            scale = factor(config, step)
            rates: Rates = {"theta": rate * scale, "phi": lower * scale, "unroll": unrolled}
            state, info = training_step(state, v, noise, rates)
            done, stopping = step + 1, stop.requested
            log.bar.update()

            # What is logged and checked leaves the device here and nowhere else.
            saving = done % config.checkpoint_every == 0 or done == config.steps or stopping
            validating = validate_every > 0 and done % validate_every == 0
            if done % config.log_every == 0 or saving or validating:
                values = {name: torch.atleast_1d(x).tolist() for name, x in info.items()}
                largest = torch.vmap(magnitude) if config.replicated else magnitude
                theta = torch.atleast_1d(largest(state.theta)).tolist()
                guard.check(done, values | {"theta": theta}, start_of(out))
                if validating:
                    values["validation"] = validation(config, objective, state, dataset.valid)
                    best = better(best, done, values["validation"], state)
                log.write(done, values)
            if saving:
                payload = {"step": done, "best": best, "state": tree(state), "config": json.dumps(config.to_json())}
                checkpoint.save(out / "checkpoints", done, payload, config.keep)
            if stopping and done < config.steps:
                say(f"interrupted: saved at step {done} in {out}; the same command continues it")
                return False
    finally:
        log.close()
        stop.restore()
    return True


def open_run(config: Config, out: Path) -> None:
    """Make the run folder, or see that the one there is of the same configuration."""
    path = out / "config.json"
    if path.exists():
        differences = config.differences(read_config(out))
        if differences:
            raise UserError(
                f"{out} holds a run of another configuration ({'; '.join(differences)}); "
                "give the same options to continue it, or another --out for a new run"
            )
    elif out.exists() and not (out.is_dir() and all(p.suffix == ".tmp" for p in out.iterdir())):  # .tmp: killed here
        raise UserError(f"{out} exists and is not a run folder; nothing was overwritten: give another --out")
    else:
        out.mkdir(parents=True, exist_ok=True)
    checkpoint.write_atomic(path, (json.dumps(config.to_json(), indent=2) + "\n").encode())


def initial_state(config: Config, objective: Objective, seed: Tensor, v: Tensor, device: torch.device) -> State:
    """The start of every replica from its own seed; theta's moving average starts at theta."""

    def one(seed: int, v: Tensor) -> State:
        state = objective.init(Key(seed, 0), v)
        state = state._replace(ema=dict(state.theta) if config.ema is not None else {})
        return state_from(tree(state), device, v.dtype)

    if not config.replicated:
        return one(int(seed), v)
    return replicas.stack([one(int(s), v[r]) for r, s in enumerate(seed)])


@torch.no_grad()
def validation(config: Config, objective: Objective, state: State, v: Tensor) -> list[float]:
    """The objective's own loss on the validation set, by replica."""
    noise = objective.draw(Key(VALIDATION_SEED, 0), v, 0)
    states = [replicas.pick(state, r) for r in range(len(replicas.names(config)))] if config.replicated else [state]
    return [float(objective.validation(s, v, noise)) for s in states]


def better(best: dict[str, Any], step: int, values: list[float], state: State) -> dict[str, Any]:
    """The best model by validation loss, for each replica: {value, step, theta, phi, ema}, one entry a replica."""
    models = {"theta": state.theta, "phi": state.phi, "ema": state.ema}
    if not best:
        return {"value": values, "step": [step] * len(values), **tree(models)}
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


def start_of(out: Path) -> int | None:
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
