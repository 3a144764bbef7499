"""Noise-contrastive estimation (Gutmann & Hyvarinen 2010) and its variational form (Rhodes & Gutmann 2019)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from eblvm.engine.errors import UserError
from eblvm.engine.methods.method import Method
from eblvm.engine.models import posteriors
from eblvm.engine.models.posteriors import Linear, PosteriorOptions
from eblvm.engine.options import option, slot

if TYPE_CHECKING:
    from torch import Tensor

    from eblvm.engine.methods.update import Update
    from eblvm.engine.models.base import Model
    from eblvm.engine.nets.base import Energy
    from eblvm.engine.nets.posteriors import Posterior
    from eblvm.engine.optim.options import Optimisation


CONTRAST_HELP = "the noise: a Gaussian with the data's means and standard deviations, or N(0, I)"


@dataclass(frozen=True)
class Nce(Method):
    kind = "nce"
    needs_conditionals = True

    contrast: str = option("fitted", CONTRAST_HELP, choices=("fitted", "standard"))

    def build(
        self,
        model: Model,
        optimisation: Optimisation,
        train: Tensor,
        energy: Energy | None = None,
        posterior: Posterior | None = None,
    ) -> Update:
        from eblvm.engine.methods.nce import GaussianNoise, NceObjective
        from eblvm.engine.methods.update import Update
        from eblvm.engine.nets.grbm import require_grbm

        grbm = require_grbm(energy or model.energy(tuple(train.shape[1:]), learns_q=False), self.kind)
        contrast = GaussianNoise.of(self.contrast, train)
        objective = NceObjective(grbm, optimisation.theta_optimizer(), contrast)
        return Update.of(objective, optimisation, grbm.frozen)


@dataclass(frozen=True)
class Vnce(Method):
    kind = "vnce"
    needs_conditionals = learns_q = True

    K: int = option(5, "real lower steps on q per minibatch", low=0)
    lower_lr: float | None = option(None, "Adam's learning rate for phi; none: that of theta", above=0)
    latent_samples: int = option(1, "samples of h in the importance average", low=1)
    contrast: str = option("fitted", CONTRAST_HELP, choices=("fitted", "standard"))
    posterior: PosteriorOptions = slot(posteriors.LEARNED, "net of q(h|v)", Linear())

    def build(
        self,
        model: Model,
        optimisation: Optimisation,
        train: Tensor,
        energy: Energy | None = None,
        posterior: Posterior | None = None,
    ) -> Update:
        from eblvm.engine.methods.nce import GaussianNoise, VnceObjective
        from eblvm.engine.methods.update import Update
        from eblvm.engine.nets.grbm import require_grbm
        from eblvm.engine.nets.posteriors import Bernoulli

        shape, optimizers = tuple(train.shape[1:]), (optimisation.theta_optimizer(), optimisation.phi_optimizer())
        grbm = require_grbm(energy or model.energy(shape, learns_q=True), self.kind)
        posterior = posterior or self.posterior.build(shape, model)
        if not isinstance(posterior, Bernoulli):
            raise UserError(f"method 'vnce' sums over binary h, got the posterior {type(posterior).__name__}")
        contrast = GaussianNoise.of(self.contrast, train)
        objective = VnceObjective(grbm, posterior, *optimizers, contrast, self.K, self.latent_samples)
        return Update.of(objective, optimisation, grbm.frozen)
