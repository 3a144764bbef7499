"""`eblvm bench bidvl`: one pass of the generator for both levels, at the width of the published CIFAR-10 model.

The engine's step against the naive one, interleaved, and what an unrolled lower step costs. The record has a profile of
the engine's step: the share of every kind of operator in its time.
"""

import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile
from tqdm import tqdm

from eblvm.bench.contestants.steps import EngineStep
from eblvm.bench.naive import Bidvl as NaiveBidvl
from eblvm.bench.suites.deep import on_device, on_flag
from eblvm.bench.suites.ratios import mib
from eblvm.bench.tools import record
from eblvm.bench.tools.agreement import TOLERANCE, AgreementError, under_way
from eblvm.bench.tools.registry import Case
from eblvm.bench.tools.timing import Step, interleaved, median
from eblvm.engine import tables
from eblvm.engine.config import Config
from eblvm.engine.methods.base import State
from eblvm.engine.planning.footprint import footprint
from eblvm.engine.recipes import recipe
from eblvm.engine.types import Params

SHAPE, BATCHES = (3, 32, 32), (40, 10)  # the smaller one for an unrolled step too
COLUMNS = ("case", "ms", "naive_ms", "ratio", "saved_mib", "naive_saved_mib", "peak_mib", "naive_peak_mib")
SCHEMA = "eblvm-bench-bidvl/1"
CHECKED_STEPS = 3
FROM_LATENT = "generator.net.0.linear.weight"  # a linear layer here, a transposed convolution in the naive net
KINDS = {  # operators by what they are for; the first name that fits
    "convolution_backward": "convolutions, backward",
    "convolution": "convolutions, forward",
    "batch_norm_backward": "batch norm, backward",
    "batch_norm": "batch norm, forward",
    "_backward": "activations, backward",
    "relu": "activations, forward",
    "tanh": "activations, forward",
    "adam": "Adam",
    "mm": "linear layers and power iterations",
    "mv": "linear layers and power iterations",
    "philox": "noise",
    "copy_": "copies",
    "cat": "copies",
}


def cases(base: Config | None = None) -> list[Case]:
    base = base or recipe("cifar10", method="bidvl")
    found = [Case(base.replaced(batch=batch), SHAPE, title=f"batch={batch} N=0", naive=True) for batch in BATCHES]
    return [*found, Case(base.replaced(batch=BATCHES[-1], N=1), SHAPE, title=f"batch={BATCHES[-1]} N=1")]


def run(
    rounds: int,
    progress: bool = True,
    found: list[Case] | None = None,
    shape: tuple[int, int, int] = SHAPE,
    device: str = "cpu",
) -> dict[str, Any]:
    """The record of the suite. Raises `AgreementError` before anything is timed if a step is wrong."""
    torch.set_num_threads(1)
    difference()
    found = on_device(found or cases(), device)
    engines = [EngineStep(case.config, shape) for case in found]
    naive = {case.name: NaiveStep(case.config, shape) for case in found if case.naive}
    group: list[Step] = [*engines, *naive.values()]
    with tqdm(total=rounds, desc="bidvl", disable=None if progress else True, file=sys.stderr, leave=False) as bar:
        (readings,) = interleaved([group], rounds, device, bar.update, long=True)
    times = [median(r) for r in readings]
    naive_ms = dict(zip(naive, times[len(found) :], strict=True))
    rows = []
    for case, engine, ms in zip(found, engines, times, strict=False):
        own = footprint(engine, engine.inputs)
        row: dict[str, Any] = dict.fromkeys(COLUMNS)
        row |= {"case": case.name, "ms": ms, "saved_mib": mib(own.saved_bytes), "peak_mib": mib(own.peak_bytes)}
        if case.naive:
            other, slower = footprint(naive[case.name], naive[case.name].inputs), naive_ms[case.name]
            row |= {"naive_ms": slower, "ratio": slower / ms}
            row |= {"naive_saved_mib": mib(other.saved_bytes), "naive_peak_mib": mib(other.peak_bytes)}
        rows.append(row)
    body = {"rounds": rounds, "rows": rows, "profile": shares(engines[0])}
    return record.make(SCHEMA, "bidvl", f"eblvm bench bidvl --rounds {rounds}" + on_flag(device), device, body)


def format_table(result: dict[str, Any]) -> str:
    figures = tables.text(COLUMNS, [[row[name] for name in COLUMNS] for row in result["rows"]])
    spent = tables.text(
        ("part of the first case", "share"), [[kind, share] for kind, share in result["profile"].items()]
    )
    return f"{figures}\n\n{spent}"


def shares(step: Step) -> dict[str, float]:
    """The share of one step's time that operators of each kind spend in themselves, largest first."""
    with profile(activities=[ProfilerActivity.CPU]) as found:
        step()
    totals: dict[str, float] = {}
    for event in found.key_averages():
        kind = next((kind for name, kind in KINDS.items() if name in event.key), "others")
        totals[kind] = totals.get(kind, 0.0) + event.self_cpu_time_total
    whole = sum(totals.values())
    return {kind: t / whole for kind, t in sorted(totals.items(), key=lambda item: -item[1])}


def difference(
    config: Config | None = None,
    shape: tuple[int, int, int] = (3, 16, 16),
    adapt: Callable[[NaiveBidvl], None] = lambda method: None,
) -> float:
    """The largest relative difference of a parameter after some steps of engine and naive procedure, in fp64. `adapt`
    may replace parts of the procedure."""
    small: dict[str, Any] = {"width": 3, "posterior_width": 2, "generator_width": 2, "latent": 3, "batch": 6}
    config = config or recipe("cifar10", method="bidvl").replaced(**small, dtype="float64")
    engine, naive = EngineStep(config, shape), naive_method(config, shape)
    adapt(naive)
    state = engine.state
    theta = under_way(State(state.theta, state.theta)).phi
    engine.state = under_way(state)._replace(theta=theta)
    load(naive, engine.state)
    for _ in range(CHECKED_STEPS):
        noise = engine.noise()
        naive.step(2 * engine.v - 1, noise["h"][0], noise["eps"][0])
        engine()
    worst = 0.0
    for name, value, other in zip(*_matched(engine.state, naive), strict=True):
        error = float((value - other).abs().max() / value.abs().max())
        if not error <= TOLERANCE:
            raise AgreementError(
                f"bidvl: {name} differs by {error:.1e} between engine and naive procedure after {CHECKED_STEPS} steps, "
                f"expected at most {TOLERANCE:.0e}; no speed is reported"
            )
        worst = max(worst, error)
    return worst


def _matched(state: State, method: NaiveBidvl) -> tuple[list[str], list[Tensor], list[Tensor]]:
    """Names and values of the engine's parameters, and the naive ones in the same shapes; views, where they can be."""
    tensors: Params = {f"energy.{name}": p for name, p in state.theta.params.items()} | state.phi.params
    own = [p.detach() for p in (*method.energy.parameters(), *method.phi)]
    shaped = [
        other.flatten(1).T if name == FROM_LATENT else other.view(value.shape)
        for (name, value), other in zip(tensors.items(), own, strict=True)
    ]
    return list(tensors), list(tensors.values()), shaped


def load(method: NaiveBidvl, state: State) -> None:
    """The engine's parameters, spectral vectors and (constant) Adam moments into the naive nets and optimisers."""
    for _, value, other in zip(*_matched(state, method), strict=True):
        other.copy_(value)
    pairs = ((method.energy_optimizer, state.theta.moments), (method.lower_optimizer, state.phi.moments))
    for optimizer, moments in pairs:
        m, v = (next(iter(tree.values())).flatten()[0] for tree in (moments.m, moments.v))
        for p in optimizer.param_groups[0]["params"]:
            step = {"step": moments.step_count.float().clone()}
            optimizer.state[p] = step | {
                "exp_avg": torch.full_like(p, float(m)),
                "exp_avg_sq": torch.full_like(p, float(v)),
            }
    vectors = [b for name, b in state.buffers.items() if name.startswith("energy.")]
    for u, value in zip(method.energy.buffers(), vectors, strict=True):
        u.copy_(value)


def naive_method(config: Config, shape: tuple[int, int, int]) -> NaiveBidvl:
    """The naive twin of a configuration, with parameters of its own."""
    torch.manual_seed(config["seed"])
    return NaiveBidvl(
        shape,
        latent=config["latent"],
        widths=(config["width"], config["posterior_width"], config["generator_width"]),
        ratio=config["ratio"],
        rates=(config["lr"][0], config["lower_lr"] or config["lr"][0]),
        betas=(config["beta1"], config["beta2"]),
        weight_decay=config["weight_decay"],
        dtype=getattr(torch, config["dtype"]),
    )


class NaiveStep:
    """The naive procedure on a batch of uniform images."""

    def __init__(self, config: Config, shape: tuple[int, int, int]):
        with torch.device(config.running.device):
            self.method, self.v = naive_method(config, shape), 2 * torch.rand(config["batch"], *shape) - 1

    def __call__(self) -> None:
        h, eps = torch.randn(2, len(self.v), self.method.latent, device=self.v.device)
        self.method.step(self.v, h, eps)

    def inputs(self) -> list[Tensor]:
        nets = (self.method.energy, self.method.encoder, self.method.generator)
        held = [t for net in nets for t in (*net.parameters(), *net.buffers())]
        optimizers = (self.method.energy_optimizer, self.method.lower_optimizer)
        moments = [t for o in optimizers for s in o.state.values() for t in s.values() if isinstance(t, Tensor)]
        gradients = [p.grad for p in held if p.grad is not None]
        return [*held, *moments, *gradients, self.v]
