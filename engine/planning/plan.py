"""Memory, FLOPs and traffic of a training step, counted on the meta device, nothing allocated: `eblvm plan RECIPE`.

The step is run on tensors that have shapes and no memory; every storage is followed from its first appearance to its
end. What a device holds is then

    state   theta, phi, their Adam moments, theta's average, and the best model kept by validation
    inputs  this process's slice of the batch and its noise
    peak    the most that is alive at once beyond those: activations, cotangents, the gradient

While a checkpoint is written, the host holds a copy of the state and its serialised form beside these. RESERVED bytes
of a GPU go to the CUDA context, cuDNN's workspaces and the allocator's gaps, which no count sees.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

from eblvm.engine.config import Config
from eblvm.engine.errors import UserError
from eblvm.engine.methods.base import Method, Nets, Noise, Rates, Rows, State, sliced
from eblvm.engine.options import can
from eblvm.engine.planning.footprint import Operators, Storages, held_bytes, saved_by_graphs
from eblvm.engine.planning.table import command
from eblvm.engine.versions import versions
from eblvm.kernels.philox import Key

GIB, MIB = 2**30, 2**20
RESERVED = GIB  # of a GPU's memory
SPLITS = (1, 2, 4, 8)  # micro-batches that a plan tries to cut a process's slice of the batch into


@dataclass(frozen=True)
class StepCost:
    """Needs of one process for a step of `config`, in bytes and FLOPs."""

    config: Config
    gpus: int
    parameters: int  # of theta
    posterior_parameters: int
    state_bytes: int
    input_bytes: int
    saved_bytes: int  # of `peak_bytes`: held by graphs when the loss is known and its backward has not begun
    peak_bytes: int
    flops: int  # of matrix products and convolutions
    sent_bytes: int  # to other processes, by a ring all-reduce

    @property
    def total_bytes(self) -> int:
        return self.state_bytes + self.input_bytes + self.peak_bytes

    def fits(self, memory: int | None) -> bool:
        return memory is None or self.total_bytes + RESERVED <= memory

    def row(self, memory: int | None) -> dict[str, Any]:
        config = self.config
        return {
            "N": config.get("N", 0),
            "checkpoint": config.model.checkpoint,
            "precision": config.model.precision,
            "micro_batch": config.step.micro_batch or config.optimisation.batch // self.gpus,
            "parameters": self.parameters + self.posterior_parameters,
            "state_mib": self.state_bytes / MIB,
            "saved_mib": self.saved_bytes / MIB,
            "peak_mib": self.peak_bytes / MIB,
            "total_mib": self.total_bytes / MIB,
            "tflop": self.flops / 1e12,
            "sent_mib": self.sent_bytes / MIB,
            "fits": self.fits(memory),
        }


def step_cost(config: Config, shape: Sequence[int], gpus: int = 1) -> StepCost:
    """Count one step of this configuration on samples of `shape`, as one of `gpus` processes takes it."""
    optimisation, running, method = config.optimisation, config.running, config.method
    batch, dtype = optimisation.batch, getattr(torch, running.dtype)
    _check(config, gpus)
    v = torch.empty(batch // gpus, *shape, device="meta", dtype=dtype)
    nets = method.nets(config, v)
    state = method.blank(nets, optimisation.theta_optimizer(), dtype)
    if config.replicated:
        state, v = tree_map(lambda x: x.new_empty(optimisation.count, *x.shape), (state, v))
    rates = optimisation.rates(0, method.rates(), torch.empty(0, dtype=dtype))
    rates = {k: rate.to("meta") for k, rate in rates.items()}
    key = Key(torch.zeros(optimisation.count, dtype=torch.int64) if config.replicated else 0, 0)
    noise = method.draw(nets, key, Rows.of(key, v, 0, batch))
    peak, saved, flops = _counted(config, nets, state, v, noise, rates)
    theta, phi = state.theta.params, state.phi.params
    kept = _bytes(theta) + _bytes(phi) if running.validations else 0
    averages = _bytes(theta) * (2 if running.validations else 1) + _bytes(phi) if optimisation.ema is not None else 0
    reduced = _bytes(theta)
    if phi:
        passes = 3 if config.get("unroll_memory") == "recompute" else 2
        unrolled = config.get("N", 0) * passes if config.get("sync") == "global" else 0
        reduced += _bytes(phi) * (config["K"] + unrolled)
    travelling = 2 * _bytes(theta) if gpus > 1 else 0  # the gradient and its buckets
    return StepCost(
        config,
        gpus,
        sum(p.numel() for p in theta.values()),
        sum(p.numel() for p in phi.values()),
        _bytes(state) + kept + averages,
        _bytes((v, noise)),
        saved,
        max(peak, travelling),
        flops,
        int(2 * (gpus - 1) / gpus * reduced),
    )


def _check(config: Config, gpus: int) -> None:
    method, batch = config.method, config.optimisation.batch
    if not method.plans or config.step.compile:
        raise UserError(
            f"a plan is for the eager run of a score matching method or of bidvl, got {method.kind!r}; remove --compile"
        )
    if config.replicated and (gpus > 1 or method.generates):
        raise UserError(
            "a plan of replicas is for a score matching method in one process; remove --replicas, --lr lists"
        )
    if batch % gpus:
        raise UserError(f"got batch={batch} for {gpus} GPUs, expected a multiple of {gpus}")


def _counted(config: Config, nets: Nets, state: State, v: Tensor, noise: Noise, rates: Rates) -> tuple[int, int, int]:
    """Return (peak bytes, of these bytes held for backward, FLOPs) of a step's gradients."""
    method, size, optimizer = config.method, config.step.micro_batch, config.optimisation.theta_optimizer()
    if config.replicated:
        return _counted_replicas(config, nets, state, v, noise, rates)
    given = (state, v, noise, rates)
    # A method that alternates moves phi at the moved theta: its whole step is counted.
    step: Callable[..., Any] = method.chunked(nets, size) if size else method.gradient(nets)
    if method.alternates:
        step = method.alternating(nets, optimizer, size, in_place=True)
    with torch.no_grad(), Operators(Storages(_tensors(given))) as counted:
        step(*given)
    if not method.alternates:
        chunk = sliced(noise, 0, min(size, len(v))) if size else noise
        return counted.storages.peak, _saved(method, nets, state, v[:size], chunk, rates), counted.flops
    with torch.no_grad(), saved_by_graphs(_tensors(given)) as graphs:
        step(*given)
    return counted.storages.peak, graphs.peak, counted.flops


def _counted_replicas(
    config: Config, nets: Nets, state: State, v: Tensor, noise: Noise, rates: Rates
) -> tuple[int, int, int]:
    """Count the whole vectorised step. No hook sees what its graphs keep: that is one replica's, times their number."""
    if config.optimisation.ema is not None:  # the averages move as well
        theta, phi = (w._replace(average=tree_map(torch.empty_like, w.params)) for w in state[:2])
        state = state._replace(theta=theta, phi=phi)
    given = (state, v, noise, rates)
    step = replace(config.step, fused=False).of(config, nets)
    with torch.no_grad(), Operators(Storages(_tensors(given))) as counted:
        step(*given)
    one = tree_map(lambda x: x[0], given)
    return counted.storages.peak, len(v) * _saved(config.method, nets, *one), counted.flops


def _saved(method: Method, nets: Nets, state: State, v: Tensor, noise: Noise, rates: Rates) -> int:
    """Return what graphs hold when the loss is known and its backward has not begun."""
    known = _tensors((state, v, noise, rates))
    return held_bytes(lambda: method.graph(nets, state, v, noise, rates), known)


def step_costs(config: Config, shape: Sequence[int], gpus: int, memory: int | None) -> Iterator[StepCost]:
    """In the order of their work: of every checkpointing (its own, or all for 'auto') the whole slice of the
    batch at once, and smaller chunks of it until one fits."""
    local, given, asked = config.optimisation.batch // gpus, config.step.micro_batch, config.model.checkpoint
    if config.replicated:  # one setting: a vectorised step has neither checkpointing nor micro-batches
        yield step_cost(config.replaced(checkpoint="none") if config.model.plans else config, shape, gpus)
        return
    for checkpoint in config.model.checkpoints if asked == "auto" else [asked]:
        sizes = sorted({-(-local // parts) for parts in SPLITS}, reverse=True)
        for size in sizes if given is None and can(config, "micro_batches") else [given or local]:
            changes: dict[str, Any] = {"micro_batch": None if size == local else size}
            if config.model.plans:
                changes["checkpoint"] = checkpoint
            found = step_cost(config.replaced(**changes), shape, gpus)
            yield found
            if found.fits(memory):
                break


def with_checkpoint_chosen(config: Config, shape: Sequence[int], gpus: int, memory: int) -> Config:
    """`config` with 'auto' replaced by the first checkpointing and micro-batch of the plan that fit this memory."""
    if not (config.model.plans and config.method.plans) or config.step.compile or config.replicated:
        return config.replaced(checkpoint="none")
    least = None
    for found in step_costs(config, shape, gpus, memory):
        if found.fits(memory):
            return found.config
        least = min(least or found.total_bytes, found.total_bytes)
    raise UserError(
        f"no setting of the plan fits: the smallest needs {_size(least or 0)} beside a reserve of "
        f"{_size(RESERVED)}, and the device has {_size(memory)}; use more processes, a smaller "
        "--batch or --precision bf16"
    )


def out_of_memory(error: RuntimeError) -> bool:
    """Is it torch's way to say so, on a GPU or on the host?"""
    return isinstance(error, torch.OutOfMemoryError) or "can't allocate memory" in str(error)


def next_smaller(config: Config, shape: Sequence[int], gpus: int) -> str:
    """Advise what to do when the memory was not enough."""
    if not (config.model.plans and config.method.plans):
        return "use a smaller --batch, or more processes"
    if config.replicated:
        return "use fewer --replicas and learning rates --lr, or a smaller --batch"
    present = step_cost(config, shape, gpus)
    others = step_costs(config.replaced(checkpoint="auto", micro_batch=None), shape, gpus, memory=0)
    following = next((n for n in others if n.total_bytes < present.total_bytes), None)
    if following is None:
        return f"this is the plan's smallest setting ({_size(present.total_bytes)}); use more processes, or bf16"
    how = f"--checkpoint {following.config.model.checkpoint}"
    if following.config.step.micro_batch is not None:
        how += f" --micro-batch {following.config.step.micro_batch}"
    return (
        f"by the plan a step needs {_size(present.total_bytes)}; the next smaller setting is {how}, "
        f"{_size(following.total_bytes)}: the same command with it continues the run"
    )


def plan(config: Config, Ns: Sequence[int], gpus: int, memory: int | None) -> dict[str, Any]:
    """Rows by N, checkpointing, precision and micro-batch, and the command to use at the first N."""
    precision, shape = config.model.precision, config.shape
    full = "tf32" if precision == "tf32" else "fp32"
    half = "fp16" if precision == "fp16" else "bf16"
    precisions = (full, half) if config.model.plans and config.running.dtype == "float32" else (full,)
    bilevel = config.get("N") is not None
    found = [
        n
        for N in (Ns if bilevel else [0])
        for kind in precisions
        for n in step_costs(config.replaced(precision=kind, **({"N": N} if bilevel else {})), shape, gpus, memory)
    ]
    at_first = [n for n in found if n.config.get("N") == found[0].config.get("N") and n.fits(memory)]
    asked = [n for n in at_first if n.config.model.precision == precision]
    chosen = next(iter(asked or at_first), None)
    return {
        "recipe": config.recipe,
        "gpus": gpus,
        "memory_mib": None if memory is None else memory / MIB,
        "reserved_mib": RESERVED / MIB,
        "batch": config.optimisation.batch,
        "replicas": config.optimisation.count,
        "rows": [n.row(memory) for n in found],
        "command": None if chosen is None else command(chosen.config, gpus),
        "versions": versions(),
    }


def _size(nbytes: int) -> str:
    return f"{nbytes / GIB:.2f} GiB" if nbytes >= GIB else f"{nbytes / MIB:.1f} MiB"


def _tensors(tree: Any) -> list[Tensor]:
    return [t for t in tree_leaves(tree) if isinstance(t, Tensor)]


def _bytes(tree: Any) -> int:
    """Of distinct storages."""
    return sum({t.untyped_storage()._cdata: t.untyped_storage().nbytes() for t in _tensors(tree)}.values())
