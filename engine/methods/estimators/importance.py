"""Importance sampling of the marginal, the baseline of VaGES."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from eblvm.engine.methods.estimators import LowerLevel
from eblvm.engine.options import option

if TYPE_CHECKING:
    from eblvm.engine.methods.vages import ImportanceScore
    from eblvm.engine.models.energy import Energy
    from eblvm.engine.models.posteriors import Posterior
    from eblvm.engine.optim.optimizers import Adam


@dataclass(frozen=True)
class Importance(LowerLevel):
    kind = "importance"
    prefix = "is-"
    fused_losses = ("dsm", "ksd")
    scales_gradients = False

    L: int = option(2, "samples of h in an estimate", low=1)

    def build(self, energy: Energy, posterior: Posterior | None, adam: Adam) -> ImportanceScore:
        from eblvm.engine.methods.vages import ImportanceScore

        assert posterior is not None
        return ImportanceScore(self, energy, posterior, adam)
