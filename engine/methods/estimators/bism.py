"""Bi-level score matching (Bao et al. 2020): the gradient flows through N unrolled steps of the lower level."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from eblvm.engine.errors import UserError
from eblvm.engine.methods import responses
from eblvm.engine.methods.estimators import LowerLevel
from eblvm.engine.methods.responses import Newton, Response, Unroll
from eblvm.engine.models.deep import PIECEWISE_LINEAR
from eblvm.engine.options import option, slot

if TYPE_CHECKING:
    from eblvm.engine.methods.bilevel import BilevelScore
    from eblvm.engine.models.base import Model
    from eblvm.engine.nets.base import Energy
    from eblvm.engine.nets.posteriors import Posterior
    from eblvm.engine.optim.optimizers import Optimizer
    from eblvm.engine.optim.options import Optimisation
    from eblvm.engine.running import Running

SYNC_HELP = "of several processes: average the unrolled steps over all, as one process would, or keep each its own"
UNROLL_MEMORY_HELP = (
    "keep the unroll's graph, or rebuild it step by step (pays where q's activations outweigh its parameters)"
)


@dataclass(frozen=True)
class Bism(LowerLevel):
    kind = "bism"
    prefix = "bi"
    fused_losses = ("dsm",)
    plans = True

    best_response: Response = slot(
        responses.KINDS,
        "how the gradient sees q's answer: through N unrolled steps, or by a Newton step on its outputs",
        Unroll(),
    )
    N: int = option(5, "unrolled lower steps that the upper gradient flows through", low=0, needs="unrolls")
    unroll_optimizer: str = option("adam", "optimiser of the unrolled steps", choices=("adam", "sgd"), needs="unrolls")
    unroll_lr: float | None = option(  # type: ignore[misc]
        None,
        "step size of the unrolled steps; none: that of phi for Adam, from the batch's curvature for SGD",
        above=0,
        needs="unrolls",
    )
    unroll_memory: str = option("store", UNROLL_MEMORY_HELP, choices=("store", "recompute"), needs="unrolls")
    sync: str = option("global", SYNC_HELP, choices=("global", "local"), needs="unrolls")

    @property
    def unrolled(self) -> int:
        """The number of unrolled steps: N, or none of them."""
        return self.N if self.best_response.unrolls else 0

    @property
    def automatic_step(self) -> bool:
        """Does SGD take its step size from the batch?"""
        return self.unroll_optimizer == "sgd" and self.unroll_lr is None

    def check(self, model: Model, optimisation: Optimisation, running: Running) -> None:
        if self.posterior.exact and (self.unrolled or self.K):
            raise UserError(f"posterior 'exact' has nothing to step on, got N={self.N} K={self.K}; use --N 0 --K 0")
        if isinstance(self.best_response, Newton):
            self._check_newton(self.best_response, model, running)
        super().check(model, optimisation, running)
        if self.unrolled and self.unroll_memory == "recompute" and running.compile:
            raise UserError(
                "--unroll-memory recompute rebuilds a graph that a compiled step does not have; remove it or --compile "
                "(--memory-budget lets the compiler save memory)"
            )
        if self.unrolled and model.activation in PIECEWISE_LINEAR:
            raise UserError(
                f"N={self.N} needs a twice differentiable energy, {model.activation!r} has no second derivative; "
                "use 'elu', 'silu' or 'softplus', or N=0"
            )
        if not (self.unrolled and self.automatic_step):
            return
        if not model.linear_in_h:
            raise UserError("unrolled SGD on a deep model needs a step size; give --unroll-lr, or use Adam")
        if not self.posterior.linear or self.divergence.reads_samples:
            raise UserError(
                "the automatic step size of unrolled SGD needs a linear posterior and the exact KL, whose curvature it "
                "bounds; give --divergence kl-exact, or a step size --unroll-lr"
            )

    def _check_newton(self, newton: Newton, model: Model, running: Running) -> None:
        samples = newton.response_samples
        if samples % 2:
            raise UserError(f"got response-samples={samples}, expected an even number: they are antithetic pairs")
        if self.posterior.exact:
            raise UserError("posterior 'exact' is the best response already; remove --best-response newton")
        if model.activation in PIECEWISE_LINEAR:
            raise UserError(
                f"a Newton step needs a twice differentiable energy, {model.activation!r} has no second derivative; "
                "use 'elu', 'silu' or 'softplus', or --best-response unroll --N 0"
            )
        if newton.solver == "cg" and running.compile:
            raise UserError("the cg solver cannot be compiled; remove --compile, or use --solver dense")

    def build(self, energy: Energy, posterior: Posterior | None, optimizer: Optimizer) -> BilevelScore:
        from eblvm.engine.methods.bilevel import BilevelScore

        assert posterior is not None
        return BilevelScore(self, energy, posterior, optimizer)
