"""Estimators of the marginal score, one a file: their options, what they can do, and how they are built.

With a loss of `engine/methods/losses` an estimator makes a method; `prefix` is the first part of the method's name.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from eblvm.engine.errors import UserError
from eblvm.engine.methods import divergences
from eblvm.engine.methods.divergences import Divergence, KlExact
from eblvm.engine.models import posteriors
from eblvm.engine.models.posteriors import Linear, PosteriorOptions
from eblvm.engine.options import Options, discovered, option, slot

if TYPE_CHECKING:
    from eblvm.engine.methods.bilevel import ExactScore, VariationalScore
    from eblvm.engine.models.base import Model
    from eblvm.engine.nets.base import Energy
    from eblvm.engine.nets.posteriors import Posterior
    from eblvm.engine.optim.optimizers import Optimizer
    from eblvm.engine.optim.options import Optimisation
    from eblvm.engine.running import Running


@dataclass(frozen=True)
class Estimator(Options):
    group = "method"
    prefix: ClassVar[str] = ""
    learns_q: ClassVar[bool] = False
    fused_losses: ClassVar[tuple[str, ...]] = ()  # with which it has a hand-written step on a GRBM
    scales_gradients: ClassVar[bool] = True  # can run in fp16
    plans: ClassVar[bool] = False
    lower_lr: ClassVar[float | None] = None
    unroll_lr: ClassVar[float | None] = None

    def check(self, model: Model, optimisation: Optimisation, running: Running) -> None: ...

    def build(self, energy: Energy, posterior: Posterior | None, optimizer: Optimizer) -> ExactScore | VariationalScore:
        raise NotImplementedError


@dataclass(frozen=True)
class LowerLevel(Estimator):
    """An estimator with a posterior q(h|v; phi) that takes K real steps of Adam per minibatch on a divergence."""

    learns_q = True

    K: int = option(5, "real lower steps on q per minibatch", low=0)
    lower_lr: float | None = option(None, "Adam's learning rate for phi; none: that of theta", above=0)  # type: ignore[misc]
    lower_clip_norm: float | None = option(None, "clip phi's gradient to this norm, in its K real steps", above=0)
    posterior: PosteriorOptions = slot(posteriors.KINDS, "net of q(h|v); 'exact' is the GRBM's own", Linear())
    divergence: Divergence = slot(divergences.KINDS, "lower level's divergence", KlExact())
    noise: str = option(
        "shared",
        "draw the perturbed batch once per minibatch or in every step",
        choices=("shared", "fresh"),
        needs="perturbs",
    )

    def check(self, model: Model, optimisation: Optimisation, running: Running) -> None:
        if self.posterior.exact and self.K:
            raise UserError(f"posterior 'exact' has nothing to step on, got K={self.K}; use --K 0")
        if running.micro_batch is not None and self.noise == "fresh":
            raise UserError("micro-batch needs the features of one batch for all lower steps; use --noise shared")


KINDS = discovered(__name__, __path__, Estimator)
