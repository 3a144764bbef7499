"""The naive procedure as an entrant, as it is or with one part replaced by a library's."""

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from eblvm.bench.contestants.roster import Entrant, contestant
from eblvm.bench.contestants.steps import Naive, NaiveStep, has_naive
from eblvm.bench.naive import BiDsm, VagesDsm
from eblvm.bench.tools.agreement import naive_gradient
from eblvm.bench.tools.registry import Case
from eblvm.engine.methods.base import State
from eblvm.engine.optim import replicas
from eblvm.engine.types import Params

Adapt = Callable[[Naive], None]


class PlainGrbm(NaiveStep):
    """The naive procedure in the case's own semantics; `adapt` replaces parts of it."""

    def __init__(self, case: Case, adapt: Adapt = lambda method: None):
        super().__init__(case)
        self.case, self.adapt = case, adapt
        for method in self.methods:
            adapt(method)

    def __call__(self) -> None:
        for method, v in zip(self.methods, self.batches, strict=True):
            method.step(v, draws(self.case, method, v))  # type: ignore[arg-type]

    def gradient(self, state: State, v: Tensor, noise: Any) -> Params:
        if not self.case.config.replicated:
            return naive_gradient(self.case, state, v, noise, self.adapt)
        gradients = [
            naive_gradient(self.case, *(replicas.pick(tree, r) for tree in (state, v, noise)), self.adapt)
            for r in range(len(self.methods))
        ]
        return {name: torch.stack([one[name] for one in gradients]) for name in gradients[0]}


def draws(case: Case, method: Naive, v_BD: Tensor) -> Callable[[], Any]:
    """The noise of one step and no more: shared noise is drawn once, and an exact KL needs none of h."""
    if not isinstance(method, BiDsm) or isinstance(method, VagesDsm) or case.config["noise"] == "fresh":
        return method.draw_fresh(v_BD)

    def in_turn() -> Iterator[tuple[Tensor, Tensor | None]]:
        eps, logistic = method.draw_fresh(v_BD)()
        for _ in range(method.K + method.N):
            yield eps, None if method.exact else method.draw_logistic(v_BD)
        yield eps, logistic

    noise = in_turn()
    return lambda: next(noise)


def unrolls(case: Case, optimizer: str | None = None) -> bool:
    """Is this BiDSM through unrolled steps (of this optimiser)?"""
    c = case.config
    if c["method"] not in ("bidsm", "bimdsm") or c.get("N") is None or c["N"] == 0:
        return False
    return optimizer is None or c["unroll_optimizer"] == optimizer


@contestant("naive", "grbm", "toy", "vages")
def grbm(case: Case) -> Entrant | None:
    unrolled = case.config.get("best_response", "unroll") == "unroll"
    return PlainGrbm(case) if has_naive(case) and unrolled else None
