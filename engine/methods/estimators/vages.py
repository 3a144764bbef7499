"""Variational estimates of the score and of its gradient (Bao et al. 2021)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from eblvm.engine.errors import UserError
from eblvm.engine.methods.estimators import LowerLevel
from eblvm.engine.options import option

if TYPE_CHECKING:
    from eblvm.engine.methods.vages import VagesScore
    from eblvm.engine.models.base import Model
    from eblvm.engine.nets.base import Energy
    from eblvm.engine.nets.posteriors import Posterior
    from eblvm.engine.optim.optimizers import Optimizer
    from eblvm.engine.optim.options import Optimisation
    from eblvm.engine.running import Running

ALPHA_PER_UNIT = 2e-4  # of one latent unit: 1e-2 for the 50 of the paper


@dataclass(frozen=True)
class Vages(LowerLevel):
    kind = "vages"
    prefix = "vages-"
    plans = True
    fused_losses = ("dsm", "ksd")
    scales_gradients = False

    L: int = option(2, "samples of h in an estimate", low=1)
    covariance: str = option(
        "unbiased",
        "VaGES's covariance over L-1 or L samples; 'none' keeps the score's estimate with fixed samples",
        choices=("unbiased", "biased", "none"),
    )
    samples: str = option(
        "independent",
        "separate sets of samples for the loss, the second-order term and the covariance, or one set for all",
        choices=("independent", "shared"),
    )
    control_variate: bool = option(False, "subtract grad_v log q(h|v) from the estimate of the score")
    C: int = option(0, "Langevin steps on h that correct the samples of q", low=0, needs="continuous_h")
    langevin_alpha: float | None = option(
        None,
        f"their step size: alpha/2 multiplies the gradient; none: {ALPHA_PER_UNIT:g} per latent unit",
        above=0,
        needs="continuous_h",
    )
    langevin_noise: float = option(1e-4, "their noise's standard deviation", low=0, needs="continuous_h")

    def check(self, model: Model, optimisation: Optimisation, running: Running) -> None:
        super().check(model, optimisation, running)
        if self.covariance != "none" and self.L < 2:
            raise UserError(
                f"a covariance needs at least two samples, got L={self.L}; use --L 2 or more, or --covariance none"
            )
        if self.C and self.control_variate:
            raise UserError(
                "the control variate has mean zero for samples of q, which Langevin steps move away from q; "
                "use --C 0 or --no-control-variate"
            )

    def alpha(self, latent: int) -> float:
        """The Langevin step size for H latent units."""
        return self.langevin_alpha or ALPHA_PER_UNIT * latent

    def build(self, energy: Energy, posterior: Posterior | None, optimizer: Optimizer) -> VagesScore:
        from eblvm.engine.methods.vages import VagesScore

        assert posterior is not None
        return VagesScore(self, energy, posterior, optimizer)
