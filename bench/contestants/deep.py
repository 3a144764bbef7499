"""The naive procedure on deep energies as an entrant, as it is or with one part replaced by a library's."""

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from eblvm.bench.contestants.steps import batch
from eblvm.bench.measurements import deep
from eblvm.bench.naive import BiMdsm
from eblvm.bench.tools.registry import Case
from eblvm.engine.methods.base import State
from eblvm.engine.types import Params

Adapt = Callable[[Any], None]


class PlainDeep:
    """MDSM or BiMDSM in the case's own semantics; `adapt` replaces parts of the naive procedure."""

    def __init__(self, case: Case, adapt: Adapt = lambda method: None):
        self.case, self.adapt, self.v = case, adapt, batch(case.config, case.shape)
        self.method = self.made()

    def made(self) -> Any:
        method = deep.naive_method(self.case.config, self.case.shape)  # type: ignore[arg-type]
        self.adapt(method)
        return method

    def __call__(self) -> None:
        self.method.step(self.v, self.draws())

    def draws(self) -> Callable[[], Any]:
        """The noise of one step; shared noise is drawn once."""
        fresh = self.method.draw_fresh(self.v)
        if not isinstance(self.method, BiMdsm) or self.case.config["noise"] == "fresh":
            return fresh
        eps = torch.randn_like(self.v)
        return lambda: (eps, self.v.new_empty(len(self.v), self.method.latent).normal_())

    def gradient(self, state: State, v: Tensor, noise: Any) -> Params:
        method = self.made()
        deep.load(method, state)
        given = pairs(noise)
        gradients = method.gradient(v, lambda: next(given))
        return dict(zip(state.theta.params, gradients, strict=True))

    def inputs(self) -> list[Tensor]:
        method = self.method
        optimizers = [method.optimizer, *([method.lower_optimizer] if isinstance(method, BiMdsm) else [])]
        held = [p for o in optimizers for group in o.param_groups for p in group["params"]]
        moments = [t for o in optimizers for s in o.state.values() for t in s.values()]
        return [self.v, self.method.sigma, *held, *moments, *(p.grad for p in held if p.grad is not None)]


def pairs(noise: Any) -> Iterator[tuple[Tensor, Tensor]]:
    """(eps, noise of h) of every step, from the engine's noise."""
    latents = [latent[:, 0] for latent in noise.get("latent", ())] or [torch.empty(0)]
    perturb = noise["perturb"]
    return iter(zip(perturb if len(perturb) > 1 else perturb * len(latents), latents, strict=True))


def can(case: Case) -> bool:
    """Is it a case of the naive deep procedures?"""
    c = case.config
    return c["method"] in ("mdsm", "bimdsm") and c.get("best_response", "unroll") == "unroll"
