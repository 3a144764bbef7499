"""Contrastive divergence and its persistent form (Hinton 2002; Tieleman 2008)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from eblvm.engine.methods.method import Method
from eblvm.engine.options import option

if TYPE_CHECKING:
    from torch import Tensor

    from eblvm.engine.methods.update import Update
    from eblvm.engine.models.base import Model
    from eblvm.engine.nets.base import Energy
    from eblvm.engine.nets.posteriors import Posterior
    from eblvm.engine.optim.options import Optimisation


@dataclass(frozen=True)
class Cd(Method):
    kind = "cd"
    needs_conditionals = True
    persistent: ClassVar[bool] = False

    sweeps: int = option(1, "k, Gibbs sweeps per step", low=1)

    def build(
        self,
        model: Model,
        optimisation: Optimisation,
        train: Tensor,
        energy: Energy | None = None,
        posterior: Posterior | None = None,
    ) -> Update:
        from eblvm.engine.methods.contrastive import ContrastiveDivergence
        from eblvm.engine.methods.update import Update
        from eblvm.engine.nets.grbm import require_grbm

        grbm = require_grbm(energy or model.energy(tuple(train.shape[1:]), learns_q=False), self.kind)
        objective = ContrastiveDivergence(grbm, optimisation.theta_optimizer(), self.sweeps, self.persistent)
        return Update.of(objective, optimisation, grbm.frozen)


@dataclass(frozen=True)
class Pcd(Cd):
    kind = "pcd"
    persistent = True
