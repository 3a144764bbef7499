"""Importance sampling of the marginal, the baseline of VaGES."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from eblvm.engine.errors import UserError
from eblvm.engine.methods.estimators import LowerLevel
from eblvm.engine.options import option

if TYPE_CHECKING:
    from eblvm.engine.methods.vages import ImportanceScore
    from eblvm.engine.models.base import Model
    from eblvm.engine.nets.base import Energy
    from eblvm.engine.nets.posteriors import Posterior
    from eblvm.engine.optim.optimizers import Optimizer
    from eblvm.engine.optim.options import Optimisation
    from eblvm.engine.running import Running


@dataclass(frozen=True)
class Importance(LowerLevel):
    kind = "importance"
    prefix = "is-"
    fused_losses = ("dsm", "ksd")
    scales_gradients = False

    L: int = option(2, "samples of h in an estimate", low=1)
    proposal: str = option(
        "q", "what they are drawn from: q(h|v), or uniformly from all h", choices=("q", "uniform"), needs="linear_in_h"
    )

    def check(self, model: Model, optimisation: Optimisation, running: Running) -> None:
        if self.proposal == "uniform" and self.K:
            raise UserError(f"a uniform proposal has nothing to step on, got K={self.K}; use --K 0")
        super().check(model, optimisation, running)

    def build(self, energy: Energy, posterior: Posterior | None, optimizer: Optimizer) -> ImportanceScore:
        from eblvm.engine.methods.vages import ImportanceScore

        assert posterior is not None
        return ImportanceScore(self, energy, posterior, optimizer)
