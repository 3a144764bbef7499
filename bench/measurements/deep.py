"""`eblvm bench deep`: BiMDSM at the price of MDSM, at the width of the published CIFAR-10 model.

One group of contestants per network, interleaved: the engine's MDSM and BiMDSM (N = 0, 5, 10 at K = 5, shared noise),
with and without checkpointing, and the naive procedure. "to_mdsm" is the median of the ratios of each round. Bytes
held are those that graphs keep when the loss is known and its backward has not begun, here and, on the meta device,
at the published batch.
"""

import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map
from tqdm import tqdm

from eblvm.bench.contestants.steps import EngineStep
from eblvm.bench.naive import BiMdsm, Mdsm, VagesMdsm
from eblvm.bench.tools import columns, record
from eblvm.bench.tools.agreement import TOLERANCE, AgreementError, under_way
from eblvm.bench.tools.memory import mib
from eblvm.bench.tools.registry import Case
from eblvm.bench.tools.timing import Step, interleaved, median, ratio_by_round
from eblvm.engine import tables
from eblvm.engine.config import Config
from eblvm.engine.methods.base import State
from eblvm.engine.methods.score_matching import ScoreMatching
from eblvm.engine.planning.footprint import footprint, held_bytes
from eblvm.engine.recipes import recipe

SHAPE, BATCH, PUBLISHED_BATCH = (3, 32, 32), 8, 100
COLUMNS = ("case", "ms", "to_mdsm", "naive_ms", "ratio", "held_mib", "held_published_mib", "peak_published_mib")
SCHEMA = "eblvm-bench-deep/1"


def cases(base: Config | None = None) -> list[Case]:
    base = base or recipe("cifar10").replaced(batch=BATCH)
    bilevel = base.replaced(unroll_memory="recompute", K=5)
    chosen = [named("method=mdsm", base.replaced(method="mdsm"))]
    chosen += [named(f"method=bimdsm N={N} K=5", bilevel.replaced(N=N), N in (0, 5)) for N in (0, 5, 10)]
    chosen += [
        named(f"method=bimdsm N=0 K=5 checkpoint={c}", bilevel.replaced(checkpoint=c)) for c in ("blocks", "all")
    ]
    chosen += newton_cases(base)
    published = base.replaced(network="published")
    bilevel = published.replaced(N=0, K=5)
    chosen.append(named("network=published method=mdsm", published.replaced(method="mdsm"), naive=True))
    chosen.append(named("network=published method=bimdsm N=0 K=5", bilevel, naive=True))
    fresh = bilevel.replaced(noise="fresh")
    chosen.append(named("network=published method=bimdsm N=0 K=5 noise=fresh", fresh, naive=True))
    return chosen + newton_cases(published, "network=published ")


def named(name: str, config: Config, naive: bool = False) -> Case:
    """A case with a title. The first case of a network is its MDSM, with which the others are compared."""
    return Case(config, SHAPE, title=name, naive=naive)


def newton_cases(base: Config, prefix: str = "") -> list[Case]:
    newton = base.replaced(best_response="newton")
    return [named(f"{prefix}method=bimdsm best_response=newton K={K}", newton.replaced(K=K)) for K in (5, 1)]


def run(rounds: int, progress: bool = True, chosen: list[Case] | None = None, device: str = "cpu") -> dict[str, Any]:
    """The record of the suite. Raises `AgreementError` before anything is timed if a gradient is wrong."""
    torch.set_num_threads(1)
    check()
    chosen = on_device(chosen or cases(), device)
    networks = dict.fromkeys(case.config["network"] for case in chosen)
    rows = []
    total = rounds * len(networks)
    with tqdm(total=total, desc="deep", disable=None if progress else True, file=sys.stderr, leave=False) as bar:
        for network in networks:  # one after the other: all of them at once need 15 GB
            of_network = [case for case in chosen if case.config["network"] == network]
            rows += measured(of_network, rounds, device, bar.update)
    command = f"eblvm bench deep --rounds {rounds}" + on_flag(device)
    return record.make(SCHEMA, "deep", command, device, {"rounds": rounds, "rows": rows})


def measured(chosen: list[Case], rounds: int, device: str, tick: Callable[[], object]) -> list[dict[str, Any]]:
    """The rows of one network's cases, of which MDSM is the first."""
    engines = [DeepStep(case.config) for case in chosen]
    naive = {naive_name(case): NaiveStep(case.config, SHAPE) for case in chosen if case.naive}
    group: list[Step] = [*engines, *naive.values()]
    (readings,) = interleaved([group], rounds, device, tick, long=True)
    times = [median(r) for r in readings]
    naive_ms = dict(zip(naive, times[len(chosen) :], strict=True))
    rows = []
    for i, (case, engine) in enumerate(zip(chosen, engines, strict=True)):
        peak_mib = mib(engine.peak_bytes(PUBLISHED_BATCH))
        to_mdsm = ratio_by_round(readings[i], readings[0])
        figures = row(case, engine, times[i], to_mdsm, naive_ms.get(naive_name(case)))
        rows.append(figures | {"peak_published_mib": peak_mib})
    return rows


def on_device(chosen: list[Case], device: str) -> list[Case]:
    return [replace(case, config=case.config.replaced(device=device)) for case in chosen]


def on_flag(device: str) -> str:
    return "" if device == "cpu" else f" --device {device}"


def naive_name(case: Case) -> str:
    """The name of a case's naive twin: the naive procedure always draws fresh noise, so both noise cases have the same
    one."""
    return case.name.removesuffix(" noise=fresh")


def row(case: Case, engine: "DeepStep", ms: float, to_mdsm: float, naive_ms: float | None) -> dict[str, Any]:
    return {
        "case": case.name,
        "ms": ms,
        "to_mdsm": to_mdsm,
        "naive_ms": naive_ms,
        "ratio": None if naive_ms is None else naive_ms / ms,
        "held_mib": mib(engine.held_bytes()),
        "held_published_mib": mib(engine.held_bytes(PUBLISHED_BATCH)),
    }


def format_table(result: dict[str, Any]) -> str:
    return tables.text(*columns.table(COLUMNS, result))


SMALL = recipe("cifar10").replaced(
    width=2, depth=12, latent=3, head_width=5, posterior_width=2, batch=4, dtype="float64", noise="fresh"
)

SMALL_PUBLISHED = recipe("cifar10").replaced(
    width=2, depth=12, latent=3, network="published", batch=4, dtype="float64", noise="fresh"
)


def check() -> float:
    """The largest relative difference between engine and naive gradient on a small model, in fp64 with fresh noise."""
    lean = [SMALL.replaced(method="mdsm"), *(SMALL.replaced(N=N, K=2) for N in (0, 2))]
    published = [SMALL_PUBLISHED.replaced(method="mdsm"), SMALL_PUBLISHED.replaced(N=0, K=2)]
    return max(*(difference(c) for c in lean), *(difference(c, (3, 16, 16)) for c in published))


def difference(config: Config, shape: tuple[int, int, int] = (3, 8, 8)) -> float:
    engine = DeepStep(config, shape)
    engine.state = under_way(engine.state)
    noise = engine.noise()
    naive = naive_method(config, shape)
    load(naive, engine.state)
    with torch.no_grad():
        gradient, *_ = engine.method.gradient(engine.nets)(engine.state, engine.v, noise, engine.rates)
    latents = [latent[:, 0] for latent in noise.get("latent", [])] or [torch.empty(0)]
    if isinstance(naive, VagesMdsm):
        latents[-1] = (noise["samples"].movedim(-2, -3), [z.movedim(-2, -3) for z in noise["langevin"]])
    draws = iter(zip(noise["perturb"], latents, strict=True))
    worst = 0.0
    for (name, g), expected in zip(gradient.items(), naive.gradient(engine.v, lambda: next(draws)), strict=True):
        error = float((g - expected).abs().max() / expected.abs().max().clamp(min=1e-30))
        if not error <= TOLERANCE:
            raise AgreementError(
                f"{config.method.kind} N={config.get('N')}: gradient of {name} differs by {error:.1e} between engine "
                f"and naive procedure, expected at most {TOLERANCE:.0e}; no speed is reported"
            )
        worst = max(worst, error)
    return worst


@torch.no_grad()
def load(method: Mdsm, state: State) -> None:
    """Copy the engine's theta, phi and Adam moments of phi into the naive modules, which list theirs in the same
    order."""
    for p, value in zip(method.model.parameters(), state.theta.params.values(), strict=True):
        p.copy_(value)
    if isinstance(method, BiMdsm):
        params, moments, _ = state.phi
        for p, name in zip(method.posterior.parameters(), params, strict=True):
            p.copy_(params[name])
            method.lower_optimizer.state[p] = {
                "step": moments.step_count.float().clone(),
                "exp_avg": moments.m[name].clone(),
                "exp_avg_sq": moments.v[name].clone(),
            }


class DeepStep(EngineStep):
    """An engine's step that also counts the bytes that its graphs keep."""

    def __init__(self, config: Config, shape: tuple[int, int, int] = SHAPE):
        super().__init__(config, shape)

    def arguments(self, batch: int | None = None) -> tuple[Any, ...]:
        """(state, v, noise, rates) of the next step; with a batch, those of that size on the meta device."""
        arguments = (self.state, self.v, self.noise(), self.rates)
        if batch is None:
            return arguments
        return tree_map(lambda t: _on_meta(t, len(self.v), batch) if isinstance(t, Tensor) else t, arguments)

    def held_bytes(self, batch: int | None = None) -> int:
        """Bytes that graphs keep between the score pass and the loss's backward; with a batch: counted on the meta
        device."""
        assert isinstance(self.method, ScoreMatching)
        state, v, noise, rates = arguments = self.arguments(batch)
        theta = {k: p.detach().requires_grad_() for k, p in state.theta.params.items()}
        upper = partial(self.method.upper, self.nets, state.phi, v, noise, rates, theta)
        return held_bytes(upper, _tensors((arguments, theta)))

    def peak_bytes(self, batch: int) -> int:
        """Most bytes alive at once in the gradient (its own included) beyond its arguments, on the meta device."""
        arguments = self.arguments(batch)

        @torch.no_grad()
        def gradient() -> None:
            self.method.gradient(self.nets)(*arguments)

        return footprint(gradient, lambda: _tensors(arguments), hooks=False).peak_bytes


def _tensors(tree: Any) -> list[Tensor]:
    return [t for t in tree_leaves(tree) if isinstance(t, Tensor)]


def _on_meta(t: Tensor, batch: int, wanted: int) -> Tensor:
    """A tensor of the same kind without memory, its batch axis (the only axis of that length) resized."""
    return torch.empty([wanted if n == batch else n for n in t.shape], dtype=t.dtype, device="meta")


def naive_method(config: Config, shape: tuple[int, int, int]) -> Mdsm:
    """The naive twin of a configuration, with parameters of its own."""
    low, high = config["sigma_range"]
    dtype = getattr(torch, config["dtype"])
    how: dict[str, Any] = {
        **{name: config[name] for name in ("latent", "width", "depth", "sigma0")},
        "lr": config["lr"][0], "betas": (config["beta1"], config["beta2"]),
        "published": config["network"] == "published",
        "head_width": config.model.network.head_units(shape, config["width"]),
    }  # fmt: skip
    torch.manual_seed(config["seed"])
    sigma = torch.linspace(low, high, config["batch"], dtype=dtype)
    if config["method"] == "mdsm":
        return Mdsm(shape, sigma, **how)
    how |= {"K": config["K"], "posterior_width": config.get("posterior_width", 1)}
    if config["method"] == "vages-mdsm":
        vages = config.method.estimator
        alpha, std = vages.alpha(config["latent"]), vages.langevin_noise
        return VagesMdsm(shape, sigma, **how, L=vages.L, C=vages.C, alpha=alpha, std=std)
    return BiMdsm(shape, sigma, **how, N=config["N"])


class NaiveStep:
    """The research procedure on a batch of uniform images, with fresh noise in every step."""

    def __init__(self, config: Config, shape: tuple[int, int, int]):
        with torch.device(config.running.device):
            self.method, self.v = naive_method(config, shape), torch.rand(config["batch"], *shape)

    def __call__(self) -> None:
        self.method.step(self.v, self.method.draw_fresh(self.v))
