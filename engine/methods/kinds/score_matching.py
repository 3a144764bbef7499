"""Score matching: an estimator of the marginal score and a loss on it. Their product is a method."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from eblvm.engine.errors import UserError
from eblvm.engine.methods import estimators, losses
from eblvm.engine.methods.estimators import Estimator, LowerLevel
from eblvm.engine.methods.losses import Loss
from eblvm.engine.methods.losses.mdsm import Mdsm
from eblvm.engine.methods.method import Method, check_eager
from eblvm.engine.options import by_kind

if TYPE_CHECKING:
    from torch import Tensor

    from eblvm.engine.methods.update import Update
    from eblvm.engine.models.base import Model
    from eblvm.engine.nets.base import Energy
    from eblvm.engine.nets.posteriors import Posterior
    from eblvm.engine.optim.options import Optimisation
    from eblvm.engine.running import Running


@dataclass(frozen=True)
class ScoreMatching(Method):
    """J(theta) = E F(s(v; theta)) for the loss F and the estimate s of the score."""

    estimator: Estimator
    loss: Loss

    @property
    def kind(self) -> str:  # type: ignore[override]
        return self.estimator.prefix + self.loss.kind

    @property
    def learns_q(self) -> bool:  # type: ignore[override]
        return self.estimator.learns_q

    @property
    def pairs_samples(self) -> bool:  # type: ignore[override]
        return self.loss.pairs_samples

    @property
    def micro_batches(self) -> bool:  # type: ignore[override]
        return not self.loss.pairs_samples

    @property
    def fused_step(self) -> bool:  # type: ignore[override]
        return self.loss.kind in self.estimator.fused_losses

    @property
    def plans(self) -> bool:  # type: ignore[override]
        return self.estimator.plans

    @property
    def lower_lr(self) -> float | None:
        return self.estimator.lower_lr

    @property
    def unroll_lr(self) -> float | None:
        return self.estimator.unroll_lr

    @property
    def blur(self) -> float:
        return self.loss.blur

    def check(self, model: Model, optimisation: Optimisation, running: Running) -> None:
        super().check(model, optimisation, running)
        loss = self.loss
        if model.needs_q and not self.learns_q:
            raise UserError(
                f"method {self.kind!r} needs a free energy in closed form, model {model.kind!r} has none; use a method "
                "with a q(h|v), such as 'bidsm'"
            )
        if isinstance(loss, Mdsm) and (len(loss.sigma_range) != 2 or loss.sigma_range[0] > loss.sigma_range[1]):
            raise UserError(f"got sigma-range={loss.sigma_range}, expected two numbers, 0 < lowest <= highest")
        if model.checkpoint in ("blocks", "all") and loss.derivatives > 2:
            raise UserError(
                f"method {self.kind!r} needs a third derivative, a checkpointed model has two; use --checkpoint none"
            )
        if model.precision == "fp16" and not (loss.scales_gradients and self.estimator.scales_gradients):
            raise UserError(f"precision 'fp16' scales the gradients of denoising methods, got {self.kind!r}; use bf16")
        if running.micro_batch is not None:
            check_eager(optimisation, running)
        self.estimator.check(model, optimisation, running)

    def build(
        self,
        model: Model,
        optimisation: Optimisation,
        train: Tensor,
        energy: Energy | None = None,
        posterior: Posterior | None = None,
    ) -> Update:
        from eblvm.engine.methods.score_matching import ScoreMatchingObjective
        from eblvm.engine.methods.update import Update
        from eblvm.engine.nets.posteriors import check_fit

        shape, users_own = tuple(train.shape[1:]), energy is not None or posterior is not None
        energy = energy or model.energy(shape, self.learns_q)
        if isinstance(self.estimator, LowerLevel):
            posterior = posterior or self.estimator.posterior.build(shape, model)
            # The engine's models of vectors fit by construction, and the meta device makes torch import its compiler.
            if users_own or model.images:
                check_fit(energy, posterior, shape)
        estimator = self.estimator.build(energy, posterior, optimisation.phi_optimizer())
        objective = ScoreMatchingObjective(estimator, self.loss, optimisation.theta_optimizer())
        return Update.of(objective, optimisation, energy.frozen)


def products() -> dict[str, Method]:
    """Every loss with every estimator that it can be a function of."""
    return by_kind(
        ScoreMatching(estimator, loss)
        for estimator in estimators.KINDS.values()
        for loss in losses.KINDS.values()
        if estimator.kind in loss.estimators
    )
