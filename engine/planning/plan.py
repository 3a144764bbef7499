"""What a training step will need, counted on the meta device before anything is allocated: `eblvm plan RECIPE`.

The step is run on tensors that have shapes and no memory; every storage is followed from its first appearance to its
end. What a device holds is then

    state   theta, phi, their Adam moments, theta's average, and the best model kept by validation
    inputs  this process's part of the batch and its noise
    peak    the most that is alive at once beyond those: activations, cotangents, the gradient

and RESERVED bytes of a GPU go to the CUDA context, cuDNN's workspaces and the allocator's gaps, which no count sees.
"""

import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from eblvm.engine.config import BILEVEL, SCORE_MATCHING, Config
from eblvm.engine.data import Dataset
from eblvm.engine.errors import UserError
from eblvm.engine.methods import State, build
from eblvm.engine.methods.bilevel import Bism
from eblvm.engine.methods.micro_batches import in_pieces
from eblvm.engine.methods.score_matching import ScoreMatching
from eblvm.engine.models.deep import CHECKPOINTS
from eblvm.engine.optim.schedule import step_rates
from eblvm.engine.planning.footprint import Operators, Saved, Storages
from eblvm.engine.recipes import options
from eblvm.engine.training.run import versions
from eblvm.kernels.philox import Key

GIB, MIB = 2**30, 2**20
RESERVED = GIB  # of a GPU's memory
UNITS = {"": 1, "KIB": 2**10, "MIB": MIB, "GIB": GIB, "KB": 10**3, "MB": 10**6, "GB": 10**9}
PIECES = (1, 2, 4, 8)  # micro-batches that a plan tries to cut a process's part of the batch into


@dataclass(frozen=True)
class Need:
    """What one process needs for a step of `config`; bytes and FLOPs."""

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
            "N": config.N,
            "checkpoint": config.checkpoint,
            "precision": config.precision,
            "micro_batch": config.micro_batch or config.batch // self.gpus,
            "parameters": self.parameters + self.posterior_parameters,
            "state_mib": self.state_bytes / MIB,
            "saved_mib": self.saved_bytes / MIB,
            "peak_mib": self.peak_bytes / MIB,
            "total_mib": self.total_bytes / MIB,
            "tflop": self.flops / 1e12,
            "sent_mib": self.sent_bytes / MIB,
            "fits": self.fits(memory),
        }


def shape_of(config: Config) -> tuple[int, ...]:
    """The shape of a recipe's samples, without its data."""
    if config.recipe == "digits":
        return (1, 8, 8) if config.model == "deep" else (64,)
    if config.recipe in ("checkerboard", "freyface"):
        return (2,) if config.recipe == "checkerboard" else (560,)
    channels = 1 if config.recipe == "mnist" else 3
    own_size = re.search(r"celeba(\d+)", config.recipe)
    size = config.size or (int(own_size.group(1)) if own_size else 32)
    return channels, size, size


def need(config: Config, shape: Sequence[int], gpus: int = 1) -> Need:
    """Count one step of this configuration on samples of `shape`, as one of `gpus` processes takes it."""
    if config.method not in (*SCORE_MATCHING, *BILEVEL) or config.replicated or config.compile:
        raise UserError("a plan is for the eager, single run of a score matching method; leave the other options out")
    if config.batch % gpus:
        raise UserError(f"got batch={config.batch} for {gpus} GPUs, expected a multiple of {gpus}")
    v = torch.empty(config.batch // gpus, *shape, device="meta", dtype=getattr(torch, config.dtype))
    update = build(config.replaced(fused=False), Dataset(v, v, v, dtype=v.dtype))
    plain, objective = update.objective, in_pieces(update, config.micro_batch).objective
    assert isinstance(plain, ScoreMatching)
    estimator = plain.estimator
    theta = _parameters(estimator.energy, v.dtype)
    phi = _parameters(estimator.posterior, v.dtype) if isinstance(estimator, Bism) else {}
    state = State(theta, phi, update.optimizer.init(theta), update.optimizer.init(phi) if phi else (), {}, {})
    rates = {k: rate.to("meta") for k, rate in step_rates(config, 0, torch.empty(0, dtype=v.dtype)).items()}
    noise = objective.draw(Key(0, 0), v, 0, config.batch)
    given = (state, v, noise, rates)

    with torch.no_grad(), Operators(Storages(_tensors(given))) as counted:
        objective.gradient(*given)
    kept = _bytes(theta) + _bytes(phi) if config.validations else 0
    averages = _bytes(theta) * (2 if config.validations else 1) if config.ema is not None else 0
    ring = 2 * (gpus - 1) / gpus
    unrolled = config.N * (3 if config.unroll_memory == "recompute" else 2) if config.sync == "global" else 0
    reduced = _bytes(theta) + _bytes(phi) * (config.K + unrolled)
    travelling = 2 * _bytes(theta) if gpus > 1 else 0  # the gradient beside its buckets
    return Need(
        config,
        gpus,
        sum(p.numel() for p in theta.values()),
        sum(p.numel() for p in phi.values()),
        _bytes(state) + kept + averages,
        _bytes((v, noise)),
        _saved_bytes(plain, state, v[: config.micro_batch], config, rates),
        max(counted.storages.peak, travelling),
        counted.flops,
        int(ring * reduced),
    )


def _saved_bytes(plain: ScoreMatching, state: State, v: Tensor, config: Config, rates: dict[str, Tensor]) -> int:
    if isinstance(plain.estimator, Bism):
        plain = replace(plain, estimator=replace(plain.estimator, K=0))  # real steps leave nothing behind
    theta = {k: p.detach().requires_grad_() for k, p in state.theta.items()}
    noise = plain.draw(Key(0, 0), v, 0, config.batch)
    saved = Storages(_tensors((state, theta, v, noise, rates)))
    with torch.autograd.graph.saved_tensors_hooks(lambda t: Saved(saved, t), lambda s: s.tensor):
        loss, _ = plain.upper(theta, state, v, noise, rates)
    held = saved.live
    del loss
    return held


def needs(config: Config, shape: Sequence[int], gpus: int, memory: int | None) -> Iterator[Need]:
    """In the order of their work: of every checkpointing (the configuration's, or all for 'auto') the whole part of the
    batch at once, and smaller pieces of it until one fits."""
    share = config.batch // gpus
    for checkpoint in CHECKPOINTS if config.checkpoint == "auto" else [config.checkpoint]:
        sizes = sorted({-(-share // pieces) for pieces in PIECES}, reverse=True)
        for size in sizes if config.micro_batch is None else [config.micro_batch]:
            piece = None if size == share else size
            found = need(config.replaced(checkpoint=checkpoint, micro_batch=piece), shape, gpus)
            yield found
            if found.fits(memory):
                break


def settled(config: Config, shape: Sequence[int], gpus: int, memory: int) -> Config:
    """`config` with 'auto' replaced by the first checkpointing and micro-batch of the plan that fit this memory."""
    if config.model != "deep" or config.compile or config.replicated:
        return config.replaced(checkpoint="none")
    least = None
    for found in needs(config, shape, gpus, memory):
        if found.fits(memory):
            return found.config
        least = min(least or found.total_bytes, found.total_bytes)
    raise UserError(
        f"no setting of the plan fits: the smallest needs {_size(least or 0)} beside a reserve of "
        f"{_size(RESERVED)}, and the device has {_size(memory)}; use more processes, a smaller "
        "--batch or --precision bf16"
    )


def device_memory(device: str) -> int:
    """Free bytes of this process's GPU, or its share of the machine's memory."""
    if torch.device(device).type == "cuda":
        return torch.cuda.mem_get_info()[0]
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return machine // int(os.environ.get("LOCAL_WORLD_SIZE", 1))


def out_of_memory(error: RuntimeError) -> bool:
    """Is it torch's way to say so, on a GPU or on the host?"""
    return isinstance(error, torch.OutOfMemoryError) or "can't allocate memory" in str(error)


def next_smaller(config: Config, shape: Sequence[int], gpus: int) -> str:
    """What to do when the memory was not enough, in words."""
    if config.model != "deep":
        return "use a smaller --batch, or more processes"
    present = need(config, shape, gpus)
    others = needs(config.replaced(checkpoint="auto", micro_batch=None), shape, gpus, memory=0)
    following = next((n for n in others if n.total_bytes < present.total_bytes), None)
    if following is None:
        return f"this is the plan's smallest setting ({_size(present.total_bytes)}); use more processes, or bf16"
    how = f"--checkpoint {following.config.checkpoint}"
    if following.config.micro_batch is not None:
        how += f" --micro-batch {following.config.micro_batch}"
    return (
        f"by the plan a step needs {_size(present.total_bytes)}; the next smaller setting is {how}, "
        f"{_size(following.total_bytes)}: the same command with it continues the run"
    )


def plan(config: Config, Ns: Sequence[int], gpus: int, memory: int | None) -> dict[str, Any]:
    """Rows by N, checkpointing, precision and micro-batch, and the command to use at the first N."""
    full = "tf32" if config.precision == "tf32" else "fp32"
    half = "fp16" if config.precision == "fp16" else "bf16"
    shape = shape_of(config)
    if config.model != "deep":
        config = config.replaced(checkpoint="none")
    precisions = (full, half) if config.model == "deep" and config.dtype == "float32" else (full,)
    found = [
        n
        for N in (Ns if config.method in BILEVEL else [0])
        for precision in precisions
        for n in needs(config.replaced(N=N, precision=precision), shape, gpus, memory)
    ]
    at_first = [n for n in found if n.config.N == found[0].config.N and n.fits(memory)]
    asked = [n for n in at_first if n.config.precision == config.precision]
    chosen = next(iter(asked or at_first), None)
    return {
        "recipe": config.recipe,
        "gpus": gpus,
        "memory_mib": None if memory is None else memory / MIB,
        "reserved_mib": RESERVED / MIB,
        "batch": config.batch,
        "rows": [n.row(memory) for n in found],
        "command": None if chosen is None else command(chosen.config, gpus),
        "versions": versions(),
    }


COLUMNS = ("N", "checkpoint", "precision", "micro_batch", "state_mib", "saved_mib", "peak_mib", "total_mib", "tflop",
           "sent_mib", "fits")  # fmt: skip


def shown(facts: dict[str, Any]) -> str:
    """The plan as a table, with the command to use."""
    rows = facts["rows"]
    cells = [[_cell(row[name]) for name in COLUMNS] for row in rows]
    widths = [max(len(line[i]) for line in (COLUMNS, *cells)) for i in range(len(COLUMNS))]
    lines = ["  ".join(x.rjust(w) for x, w in zip(line, widths, strict=True)) for line in (COLUMNS, *cells)]
    memory = facts["memory_mib"]
    head = (
        f"{facts['recipe']}: {rows[0]['parameters'] / 1e6:.1f} million parameters, batch {facts['batch']} over "
        f"{facts['gpus']}; per process and step"
    )
    if memory is not None:
        head += f"; fits: total and {facts['reserved_mib']:.0f} MiB in reserve within {memory:.0f} MiB"
    return "\n".join([head, *lines, f"use: {facts['command'] or 'more GPUs, or a smaller --batch: nothing fits'}"])


def _cell(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def command(config: Config, gpus: int) -> str:
    start = f"torchrun --nproc-per-node {gpus} -m eblvm" if gpus > 1 else "eblvm"
    words = [start, "train", config.recipe, "--data PATH --device cuda", *options(config, leave_out=("data", "device"))]
    return " ".join(words)


def plot(facts: dict[str, Any], path: Path) -> None:
    """Memory of a process against N, a line for every checkpointing and precision at the largest micro-batch."""
    from matplotlib.figure import Figure  # slow to import

    figure = Figure(figsize=(7, 4.5), layout="constrained")
    axes = figure.add_subplot()
    lines: dict[str, dict[int, float]] = {}
    for row in facts["rows"]:
        lines.setdefault(f"{row['precision']}, checkpoint {row['checkpoint']}", {}).setdefault(
            row["N"], row["total_mib"] / 1024
        )
    for name, line in lines.items():
        axes.plot(list(line), list(line.values()), "o-", label=name)
    if facts["memory_mib"] is not None:
        axes.axhline((facts["memory_mib"] - facts["reserved_mib"]) / 1024, color="black", linestyle=":", label="usable")
    axes.set(xlabel="N, unrolled steps", ylabel="GiB a process", ylim=(0, None))
    axes.set_title(f"{facts['recipe']}, batch {facts['batch']} over {facts['gpus']}", fontsize=11)
    axes.legend(fontsize=8)
    axes.grid(alpha=0.3)
    figure.savefig(path, dpi=120)


def parse_bytes(text: str) -> int:
    """11GiB, 512 MiB, 8GB or a plain number of bytes."""
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*", text)
    if found is None or found.group(2).upper() not in UNITS:
        raise UserError(f"got memory {text!r}, expected a number with a unit, such as 11GiB or 8000MB")
    return int(float(found.group(1)) * UNITS[found.group(2).upper()])


def _parameters(model: torch.nn.Module, dtype: torch.dtype) -> dict[str, Tensor]:
    return {k: torch.empty(p.shape, dtype=dtype, device="meta") for k, p in model.named_parameters()}


def _size(nbytes: int) -> str:
    return f"{nbytes / GIB:.2f} GiB" if nbytes >= GIB else f"{nbytes / MIB:.1f} MiB"


def _tensors(tree: Any) -> list[Tensor]:
    return [t for t in tree_leaves(tree) if isinstance(t, Tensor)]


def _bytes(tree: Any) -> int:
    """Of distinct storages."""
    storages = {t.untyped_storage()._cdata: t.untyped_storage().nbytes() for t in _tensors(tree)}
    return sum(storages.values())
