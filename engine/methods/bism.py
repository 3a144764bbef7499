"""Bi-level score matching (Bao et al. 2020, Algorithm 1)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Self

import torch

from eblvm.engine import autodiff
from eblvm.engine.autodiff import collectives
from eblvm.engine.errors import UserError
from eblvm.engine.methods import fused_grbm, newton
from eblvm.engine.methods.base import Gradient, Info, Nets, Noise, Rates, Rows
from eblvm.engine.methods.estimates import Batch, Features, Loss, ScoreEstimate
from eblvm.engine.methods.lower_level import LowerLevel, features_at
from eblvm.engine.methods.newton import BestResponse, Newton, Unroll
from eblvm.engine.models.deep import PIECEWISE_LINEAR
from eblvm.engine.optim.base import Weights
from eblvm.engine.optim.sgd import Sgd
from eblvm.engine.options import option, slot
from eblvm.engine.types import Params

if TYPE_CHECKING:
    from torch import Tensor

    from eblvm.engine.config import Config
    from eblvm.kernels.philox import Key

SYNC_HELP = "of several processes: average the unrolled steps over all, as one process would, or keep each its own"
UNROLL_MEMORY_HELP = (
    "keep the unroll's graph, or rebuild it step by step (pays where q's activations outweigh its parameters)"
)


class Bism(LowerLevel):
    """s(v) = grad_v [log p~(v, h) - log q(h|v; phi_N)] at h ~ q(h|v; phi_N). phi makes K real steps on the divergence;
    phi_N follows by N unrolled steps, through which theta's gradient flows. The posterior 'exact' puts the model's own
    p(h|v) in the place of q (Theorem 1's premise), with no steps."""

    kind = "bism"
    prefix = "bi"
    plans = True

    best_response: BestResponse = slot(
        newton.KINDS,
        "how the gradient sees q's answer: through N unrolled steps, or by a Newton step on its outputs",
        Unroll(),
    )
    N: int = option(5, "unrolled lower steps that the upper gradient flows through", low=0, needs="unrolls")
    unroll_optimizer: str = option("adam", "optimiser of the unrolled steps", choices=("adam", "sgd"), needs="unrolls")
    unroll_lr: float | None = option(
        None,
        "step size of the unrolled steps; none: that of phi for Adam, from the batch's curvature for SGD",
        above=0,
        needs="unrolls",
    )
    unroll_memory: str = option("store", UNROLL_MEMORY_HELP, choices=("store", "recompute"), needs="unrolls")
    sync: str = option("global", SYNC_HELP, choices=("global", "local"), needs="unrolls")

    @property
    def unrolled(self) -> int:
        """N, or none with a Newton step."""
        return self.N if self.best_response.unrolls else 0

    @property
    def attached(self) -> bool:
        return bool(self.unrolled or self.posterior.exact)

    @property
    def automatic_step(self) -> bool:
        """Does SGD take its step size from the batch?"""
        return self.unroll_optimizer == "sgd" and self.unroll_lr is None

    def check(self, config: Config) -> None:
        model, unrolled = config.model, self.unrolled
        if self.posterior.exact and (unrolled or self.K):
            raise UserError(f"posterior 'exact' has nothing to step on, got N={self.N} K={self.K}; use --N 0 --K 0")
        if self.posterior.exact and not self.best_response.unrolls:
            raise UserError("posterior 'exact' is the best response already; remove --best-response newton")
        super().check(config)
        if unrolled and self.unroll_memory == "recompute" and config.step.compile:
            raise UserError(
                "--unroll-memory recompute rebuilds a graph that a compiled step does not have; remove it or --compile "
                "(--memory-budget lets the compiler save memory)"
            )
        if unrolled and model.activation in PIECEWISE_LINEAR:
            raise UserError(
                f"N={self.N} needs a twice differentiable energy, {model.activation!r} has no second derivative; "
                "use 'elu', 'silu' or 'softplus', or N=0"
            )
        if not (unrolled and self.automatic_step):
            return
        if not model.linear_in_h:
            raise UserError("unrolled SGD on a deep model needs a step size; give --unroll-lr, or use Adam")
        if not self.posterior.linear or self.divergence.reads_samples:
            raise UserError(
                "the automatic step size of unrolled SGD needs a linear posterior and the exact KL, whose curvature it "
                "bounds; give --divergence kl-exact, or a step size --unroll-lr"
            )

    def rates(self) -> dict[str, float | None]:
        return {"phi": self.lower_lr, "unroll": self.unroll_lr}

    def without_steps(self) -> Self:
        return replace(self, K=0, N=0)

    def draw(self, nets: Nets, key: Key, rows: Rows) -> Noise:
        noise = super().draw(nets, key, rows)
        if isinstance(self.best_response, Newton):
            noise["response"] = self.best_response.draw(nets, key, rows)
        return noise

    def respond(
        self, nets: Nets, theta: Params, f: Any, phi: Weights, batches: Sequence[Batch], noise: Noise, rates: Rates
    ) -> tuple[Any, Weights, Info]:
        """Return phi_N as a function of theta and f, phi after its K real steps, and what is logged."""
        phi, info = self.real_steps(nets, theta, f, phi, batches, noise, rates)
        if self.posterior.exact:
            return nets.energy.at(theta).linear_posterior(), phi, info
        if not self.unrolled:
            return phi.params, phi, info
        with autodiff.named("unrolled steps"):
            return self._unrolled(nets, theta, f, phi, batches, noise, rates).params, phi, info

    def _unrolled(
        self, nets: Nets, theta: Params, f: Any, phi: Weights, batches: Sequence[Batch], noise: Noise, rates: Rates
    ) -> Weights:
        if self.automatic_step:
            with torch.no_grad():
                rates = rates | {"unroll": linear_step_size(batches[-1].v)}
        energy, contexts = nets.energy.at(theta), []
        for n in range(self.K, self.K + self.unrolled):
            batch = batches[n % len(batches)]
            f_n, latent_SBH = features_at(n, energy, f, batches), noise["latent"][n].movedim(-2, -3)
            contexts.append((theta, f_n, batch.v, batch.lower_weight, latent_SBH, rates))
        moments = phi.moments._replace(m={}, v={}) if self.unroll_optimizer == "sgd" else phi.moments
        start = Weights(phi.params, moments)
        return autodiff.unroll(partial(self._unrolled_step, nets), start, contexts, self.unroll_memory)

    def _unrolled_step(self, nets: Nets, phi: Weights, context: tuple[Any, ...]) -> Weights:
        theta, *given, rates = context
        lower = partial(self.lower_loss, nets, nets.energy.at(theta), *given)
        gradient, _ = autodiff.grad(lower, phi.params, rates.get("scale"))
        if self.sync == "global":
            gradient = collectives.differentiable_mean(gradient)
        optimizer = Sgd() if self.unroll_optimizer == "sgd" else nets.unroll_optimizer
        return optimizer.step(phi, gradient, rates["unroll"])

    def estimate(
        self, nets: Nets, theta: Params, response: Any, features: Features, batch: Batch, noise: Noise, rates: Rates
    ) -> ScoreEstimate:
        """Return log p~(v, h) - log q(h|v; phi_N) at h ~ q, or the estimate at a Newton step from q."""
        if isinstance(self.best_response, Newton):
            return self.best_response.estimate(nets, theta, response, features, batch.v, noise)
        energy, q, v = nets.energy.at(theta), nets.posterior.at(response), batch.v
        once = not self.attached and passes_q_once(v)
        p, pull_q = autodiff.vjp(q.params, v) if once else (q.params(v), None)
        h = q.rsample(autodiff.detached(p) if once else p, noise["latent"][-1].movedim(-2, -3)[0])

        def log_q(x: Tensor) -> Tensor:
            return q.log_prob(q.params(x), h)

        def score_of_q() -> Tensor:
            """Return grad_v log q(h|v)."""
            scale = rates.get("scale")
            if pull_q is None:
                return autodiff.grad(lambda x: (log_q(x).sum(), ()), v, scale)[0]
            with torch.no_grad():
                log_q_B, pull = autodiff.vjp(lambda x: q.log_prob(x, h), p)
                u = pull(torch.ones_like(log_q_B))
                if scale is None:
                    return pull_q(u, keep=True)
                return pull_q(autodiff.tree_map(lambda x: x * scale, u), keep=True) / scale

        def log_density(x: Tensor) -> Tensor:
            return -energy.energy(x, h) - log_q(x)

        def score() -> Tensor:
            e_B, pull = autodiff.vjp(lambda x: energy.head(x, h), features.f)
            of_energy = features.pull(
                pull(torch.full_like(e_B, -1.0))
            )  # before q's part: its backward then comes after that of q, which frees memory
            return of_energy - score_of_q()

        return ScoreEstimate(log_density, score)

    def fused(self, nets: Nets, loss: Loss, device: torch.device, dtype: torch.dtype) -> Gradient | None:
        return fused_grbm.bism_gradient_for(self, loss, nets, device, dtype)


def passes_q_once(v: Tensor) -> bool:
    """Does one pass of a q without theta's graph serve its sample and its score? Where launches cost, on a GPU."""
    return v.is_cuda


def linear_step_size(v_BD: Tensor, iterations: int = 16) -> Tensor:
    """Return 6 / lambda_max of M = (v v^T + 1 1^T) / B: 3/4 of SGD's largest stable step on a linear posterior. A step
    of size a on (A, a) moves the logits by -a M delta, and the exact KL's curvature in a logit is at most 1/4. Of the
    steps tried on Frey face (docs/results.md) those near the limit gave the best models."""

    def norm(x: Tensor) -> Tensor:  # over all ranks' samples, as are M's products
        return collectives.mean(x.square().sum()).sqrt()

    x = torch.ones_like(v_BD[:, :1])
    for _ in range(iterations):
        x = x / norm(x)
        pulled, total = collectives.mean((v_BD.T @ x, x.sum()))
        x = (v_BD @ pulled + total) / v_BD.shape[0]
    return 6 / norm(x)
