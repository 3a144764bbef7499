"""`eblvm bench deep`: BiMDSM at the price of MDSM, at the width of the published CIFAR-10 model.

One group of contestants, interleaved: the engine's MDSM and BiMDSM (N = 0, 5, 10 at K = 5, shared noise), with and
without checkpointing, and the naive procedure. Bytes held are those that graphs hold when the loss is known and its
backward has not begun, here and, on the meta device, at the published batch.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

from eblvm.bench.footprint import Saved, Storages, footprint
from eblvm.bench.naive import BiMdsm, Mdsm
from eblvm.engine.config import Config
from eblvm.engine.data import Dataset
from eblvm.engine.objectives import State, build
from eblvm.engine.objectives.score_matching import ScoreMatching
from eblvm.engine.recipes import recipe
from eblvm.engine.schedule import step_rates
from eblvm.engine.train import initial_state
from eblvm.kernels import philox
from eblvm.kernels.philox import Key, Purpose, purpose

SHAPE, BATCH, PUBLISHED_BATCH = (3, 32, 32), 8, 100
COLUMNS = ("case", "ms", "to_mdsm", "naive_ms", "speed_up", "held_mib", "held_published_mib", "peak_mib")
MIB = 2**20


@dataclass(frozen=True)
class Case:
    name: str
    config: Config
    naive: bool = False  # timed against the naive procedure too


def cases(base: Config | None = None) -> list[Case]:
    base = base or recipe("cifar10").replaced(batch=BATCH)
    bilevel = base.replaced(unroll_memory="recompute")
    found = [Case("method=mdsm", base.replaced(method="mdsm"))]
    found += [Case(f"method=bimdsm N={N} K=5", bilevel.replaced(N=N, K=5), N in (0, 5)) for N in (0, 5, 10)]
    found += [Case(f"method=bimdsm N=0 K=5 checkpoint={c}", bilevel.replaced(checkpoint=c)) for c in ("blocks", "all")]
    return found


class EngineStep:
    """The engine's training step on a batch of uniform images."""

    def __init__(self, config: Config, shape: tuple[int, int, int] = SHAPE):
        config.validate()
        self.v = philox.uniform(
            Key(0, 0), purpose(Purpose.DATA), config.batch, shape, dtype=getattr(torch, config.dtype)
        )
        self.update = build(config, Dataset(self.v, self.v, self.v, dtype=self.v.dtype))
        assert isinstance(self.update.objective, ScoreMatching)
        self.objective = self.update.objective
        self.state: State = initial_state(config, self.objective, torch.tensor(0), self.v, torch.device("cpu"))
        self.rates = step_rates(config, 0, self.v)
        self.count = 0

    def noise(self) -> Any:
        return self.objective.draw(Key(0, self.count), self.v)

    def __call__(self) -> None:
        self.state, _ = self.update(self.state, self.v, self.noise(), self.rates)
        self.count += 1

    def inputs(self) -> list[Tensor]:
        return _tensors((self.state, self.v, self.rates))

    def arguments(self, batch: int | None = None) -> tuple[Any, ...]:
        """(state, v, noise, rates) of the next step; with a batch, those of that size on the meta device."""
        found = (self.state, self.v, self.noise(), self.rates)
        if batch is None:
            return found
        return tree_map(lambda t: _on_meta(t, len(self.v), batch) if isinstance(t, Tensor) else t, found)

    def held_bytes(self, batch: int | None = None) -> int:
        """Bytes that graphs hold between the score pass and the loss's backward; a batch: on the meta device."""
        state, *rest = arguments = self.arguments(batch)
        theta = {k: p.detach().requires_grad_() for k, p in state.theta.items()}
        saved = Storages(_tensors((arguments, theta)))
        with torch.autograd.graph.saved_tensors_hooks(lambda t: Saved(saved, t), lambda s: s.tensor):
            loss, _ = self.objective.upper(theta, state, *rest)
        held = saved.live
        del loss
        return held

    def peak_bytes(self, batch: int) -> int:
        """Most bytes alive at once in the gradient (its own included) beyond its arguments, on the meta device."""
        arguments = self.arguments(batch)

        @torch.no_grad()
        def gradient() -> None:
            self.objective.gradient(*arguments)

        return footprint(gradient, lambda: _tensors(arguments), hooks=False).peak_bytes


def _tensors(tree: Any) -> list[Tensor]:
    return [t for t in tree_leaves(tree) if isinstance(t, Tensor)]


def _on_meta(t: Tensor, batch: int, wanted: int) -> Tensor:
    """A tensor of the same kind without memory, its batch axis (the only one of that length) as wanted."""
    return torch.empty([wanted if n == batch else n for n in t.shape], dtype=t.dtype, device="meta")


def naive_method(config: Config, shape: tuple[int, int, int] = SHAPE) -> Mdsm | BiMdsm:
    """The naive twin of a configuration, with parameters of its own."""
    low, high = config.sigma_range
    sigma = torch.linspace(low, high, config.batch, dtype=getattr(torch, config.dtype))
    how: dict[str, Any] = {
        "latent": config.latent, "width": config.width, "depth": config.depth, "head_width": config.head_width,
        "sigma0": config.sigma0, "lr": config.lr[0], "betas": (config.beta1, config.beta2),
    }  # fmt: skip
    torch.manual_seed(config.seed)
    if config.method == "mdsm":
        return Mdsm(shape, sigma, **how)
    return BiMdsm(shape, sigma, **how, N=config.N, K=config.K, posterior_width=config.posterior_width)


class NaiveStep:
    def __init__(self, config: Config, v: Tensor):
        self.method, self.v = naive_method(config, (v.shape[1], v.shape[2], v.shape[3])), v

    def __call__(self) -> None:
        self.method.step(self.v, self.method.draw_fresh(self.v))
