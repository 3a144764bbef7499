"""The exact score of an energy with a tractable free energy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from eblvm.engine.methods.estimators import Estimator

if TYPE_CHECKING:
    from eblvm.engine.methods.bilevel import ExactScore
    from eblvm.engine.nets.base import Energy
    from eblvm.engine.nets.posteriors import Posterior
    from eblvm.engine.optim.optimizers import Optimizer


@dataclass(frozen=True)
class FreeEnergy(Estimator):
    kind = "exact"
    fused_losses = ("dsm", "ksd")
    plans = True

    def build(self, energy: Energy, posterior: Posterior | None, optimizer: Optimizer) -> ExactScore:
        from eblvm.engine.methods.bilevel import ExactScore

        return ExactScore(energy)
