"""One training step of each contestant as a function of no arguments: the engine's, the naive one's.

Both draw their own noise and move their own state, on one batch of uniform data of the case's width. Time, memory,
FLOPs and the agreement of gradients are all measured on what is built here.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from eblvm.bench.naive import BiDsm, Dsm, VagesDsm
from eblvm.bench.tools.registry import Case
from eblvm.bench.tools.timing import Step
from eblvm.engine.config import Config
from eblvm.engine.machine import own_device, set_products
from eblvm.engine.methods.base import Rows, State
from eblvm.engine.methods.bism import linear_step_size
from eblvm.engine.training.start import initial_state
from eblvm.engine.training.step import vectorised
from eblvm.engine.types import Params
from eblvm.kernels import philox
from eblvm.kernels.philox import Key, Purpose, purpose

Naive = BiDsm | Dsm


class Contest(NamedTuple):
    """A case made ready: what runs, what exists before it runs, and whether saved-tensor hooks can look inside.

    `twin` is the naive procedure with the unrolled optimiser and divergence of the case, where the published one has
    others.
    """

    name: str
    engine: Step
    engine_inputs: Callable[[], list[Tensor]]
    engine_hooks: bool
    baseline: Step
    baseline_inputs: Callable[[], list[Tensor]]
    floor: Step | None
    traceable: bool = True  # False for compiled code, whose allocations no dispatch mode sees
    twin: Step | None = None


def batch(config: Config, shape: tuple[int, ...]) -> Tensor:
    """Uniform data [B, *shape], or [R, B, *shape] with replicas, the same for every contestant."""
    key, dtype = Key(config.optimisation.seeds(), 0), getattr(torch, config.running.dtype)
    batch_size = config.optimisation.batch
    return philox.uniform(key, purpose(Purpose.DATA), batch_size, shape, dtype=dtype).to(config.running.device)


class EngineStep:
    """Noise from the method's `draw`, then the step that `eblvm train` takes with this configuration, on samples of
    this shape, from a given state or from the beginning."""

    def __init__(self, config: Config, shape: tuple[int, ...], state: State | None = None):
        config.check()
        own_device(config.running.device)
        self.config, self.v, self.seed, self.count = (
            config,
            batch(config, shape),
            config.optimisation.seeds().to(config.running.device),
            0,
        )
        data = self.v.flatten(0, 1) if config.replicated else self.v
        self.method, self.nets = config.method, config.method.nets(config, data)
        start = (config, self.nets, self.seed.cpu(), self.v.cpu())
        self.state: State = state or initial_state(*start, device=config.running.device)
        self.rates = config.optimisation.rates(0, self.method.rates(), self.v)
        self.step = config.step.of(config, self.nets)

    def noise(self) -> Any:
        key = Key(self.seed, self.count)
        return self.method.draw(self.nets, key, Rows.of(key, self.v))

    def __call__(self) -> None:
        set_products(self.config.model.precision)  # contestants of other precisions share the process
        self.state, _ = self.step(self.state, self.v, self.noise(), self.rates)
        self.count += 1

    def inputs(self) -> list[Tensor]:
        """The tensors that exist before a step, which are no part of its memory."""
        return [t for t in tree_leaves((self.state, self.v, self.rates)) if isinstance(t, Tensor)]


class CaseStep(EngineStep):
    """A case's step, with theta's gradient by autograd and by the fused step."""

    def __init__(self, case: Case, state: State | None = None):
        super().__init__(case.config, case.shape, state)
        step = self.config.step
        gradient = self.method.gradient(self.nets)
        self.by_autograd = vectorised(gradient) if self.config.replicated else gradient
        self.by_kernels = self.method.fused(self.nets, self.v.device, self.v.dtype)
        self.fused = step.fused and not step.compile and self.by_kernels is not None

    def gradient(self, noise: Any) -> Params:
        """theta's gradient by autograd at the present state, which does not move."""
        with torch.no_grad():
            gradient, *_ = self.by_autograd(self.state, self.v, noise, self.rates)
        return gradient

    def fused_gradient(self, noise: Any) -> Params:
        """The same by the fused step."""
        assert self.by_kernels is not None
        gradient, *_ = self.by_kernels(self.state, self.v, noise, self.rates)
        return gradient

    @property
    def hooks(self) -> bool:
        """Can saved-tensor hooks look inside? Not into vmap; the fused step needs none for its replicas."""
        return self.fused or not self.config.replicated


class NaiveStep:
    """The research procedure on the same batch, one replica after the other."""

    def __init__(self, case: Case):
        c = case.config
        self.v = batch(c, case.shape)
        self.batches = list(self.v) if c.replicated else [self.v]
        self.methods = [naive_method(case, v) for v in self.batches]

    def __call__(self) -> None:
        for method, v in zip(self.methods, self.batches, strict=True):
            method.step(v, method.draw_fresh(v))  # type: ignore[arg-type]

    def inputs(self) -> list[Tensor]:
        tensors = [self.v]
        for method in self.methods:
            optimizers = [method.optimizer]
            if isinstance(method, BiDsm):
                optimizers.append(method.lower_optimizer)
                tensors += method.posterior.parameters()
            tensors += method.model.parameters()
            tensors += [t for o in optimizers for t in tree_leaves(list(o.state.values())) if isinstance(t, Tensor)]
            tensors += [p.grad for o in optimizers for g in o.param_groups for p in g["params"] if p.grad is not None]
        return tensors


def published(case: Case) -> Case:
    """The case as the papers run it: fresh noise in every step, a sampled KL, Adam unrolled."""
    papers = {"noise": "fresh", "divergence": "kl", "unroll_optimizer": "adam", "unroll_lr": None}
    read = {leaf.name for leaf in case.config.leaves()}
    return replace(case, config=case.config.replaced(**{k: v for k, v in papers.items() if k in read}))


def has_naive(case: Case) -> bool:
    return case.config["method"] in ("bidsm", "dsm", "vages-dsm") and case.config.get("posterior", "linear") == "linear"


def naive_method(case: Case, v: Tensor) -> Naive:
    """The naive twin of a case's configuration, with parameters of its own."""
    c = case.config
    size: dict[str, Any] = {"visible": case.visible, "latent": c["latent"]}
    how: dict[str, Any] = {"sigma": c["sigma"], "lr": c["lr"][0], "betas": (c["beta1"], c["beta2"])}
    torch.manual_seed(c["seed"])
    default = torch.get_default_dtype()
    torch.set_default_dtype(v.dtype)  # nn.Module has no other way to make all of its parameters in one dtype
    try:
        with torch.device(v.device):
            if c["method"] == "dsm":
                return Dsm(**size, **how)
            how |= {"K": c["K"], "temperature": c["temperature"], "exact": c["divergence"] == "kl-exact"}
            if c["method"] == "vages-dsm":
                return VagesDsm(**size, **how, L=c["L"])
            rate = c["unroll_lr"] or float(linear_step_size(v))
            return BiDsm(**size, **how, N=c["N"], sgd_rate=rate if c["unroll_optimizer"] == "sgd" else None)
    finally:
        torch.set_default_dtype(default)
