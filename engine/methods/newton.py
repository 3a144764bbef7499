"""The gradient of theta through q's response: by N unrolled steps (bism.py), or by the Newton step of this file.

The best response of q by a Newton step on its outputs is the whole implicit gradient (N = infinity) through the head.
The lower level separates over samples: D(eta; f, theta) reads q's outputs eta and the features f of one sample, never
q's weights. So take the best response of the outputs,

    eta^(f, theta) = eta1 - A dD/deta(eta1; f, theta),   A ~ (d^2 D / deta^2)^-1, eta1 and A held fixed.

In value it is a Newton step towards argmin D, in derivative the implicit function theorem. eta1 is params(v) after
`response_steps` such steps without a derivative. The estimate of the score is

    s = J^T d/df [-head(f, h) - log q(h; eta^(f, theta))]   at h ~ q(eta^) held fixed, J = df/dv:

one cotangent on f, and no derivative of q's network. D is the KL divergence, whatever the lower level minimises.
docs/newton.md has the derivation, newton_step.py the step. All of it is local to a sample, so several processes have
nothing to reduce.

Shape tags: S samples of h in D, L of an estimate, B batch, H latent units.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import torch

from eblvm.engine import autodiff
from eblvm.engine import nets as modules
from eblvm.engine.errors import UserError
from eblvm.engine.methods.base import Nets, Noise, Rows
from eblvm.engine.methods.estimates import Features, ScoreEstimate
from eblvm.engine.methods.newton_step import Moved, antithetic, best_response, expected
from eblvm.engine.models.deep import PIECEWISE_LINEAR
from eblvm.engine.options import Options, declared, option
from eblvm.engine.types import Params
from eblvm.kernels import philox

if TYPE_CHECKING:
    from torch import Tensor

    from eblvm.engine.config import Config
    from eblvm.engine.nets import Energy, Posterior


class BestResponse(Options):
    group = "method"
    unrolls: ClassVar[bool] = False


class Unroll(BestResponse):
    """N unrolled steps on q's weights (Bao et al. 2020)."""

    kind = "unroll"
    unrolls = True


class Newton(BestResponse):
    """A Newton step on q's outputs. Steps and curvatures are in the units of q: a mean in its std, a log std in
    1/sqrt(2), so that q's own Fisher information is the identity and no option depends on the scale of h."""

    kind = "newton"

    response_samples: int = option(
        8, "S, samples of h in the step, an even number; a head with closed expectations needs none", low=2
    )
    response_block: str = option(
        "mean", "outputs of q that move: means, or means and log stds", choices=("mean", "full")
    )
    response_score: str = option(
        "mean",
        "the score as a mean over q, at one h as BiSM has it, or at h and its mirror image",
        choices=("mean", "single", "pairs"),
    )
    response_steps: int = option(1, "steps in value alone, before the one that carries derivatives", low=0)
    floor: float = option(0.1, "least curvature; smaller ones are raised to it", above=0)
    trust: float = option(2.0, "longest step, root mean square over the outputs; a longer one is cut", above=0)
    solver: str = option("dense", "make the Hessian, or use its products only", choices=("dense", "cg"))
    cg_iterations: int = option(32, "of the cg solver", low=1)

    def check(self, config: Config) -> None:
        if self.response_samples % 2:
            raise UserError(
                f"got response-samples={self.response_samples}, expected an even number: they are antithetic pairs"
            )
        if config.model.activation in PIECEWISE_LINEAR:
            raise UserError(
                f"a Newton step needs a twice differentiable energy, {config.model.activation!r} has no second "
                "derivative; use 'elu', 'silu' or 'softplus', or --best-response unroll --N 0"
            )
        if self.solver == "cg" and config.step.compile:
            raise UserError("the cg solver cannot be compiled; remove --compile, or use --solver dense")

    def draw(self, nets: Nets, key: philox.Key, rows: Rows) -> Tensor:
        """Return the noise of the step's samples of h [B, S, H]."""
        shape, purpose = (self.response_samples, nets.posterior.latent), philox.purpose(philox.Purpose.LATENT_SAMPLE)
        return philox.normal(key, purpose, rows.samples, shape, **rows.place)

    def estimate(
        self, nets: Nets, theta: Params, phi: Params, features: Features, v: Tensor, noise: Noise
    ) -> ScoreEstimate:
        """Return the estimate at q's best response to theta and f; q's network has no derivative here."""
        q = nets.posterior.at(phi)
        with torch.no_grad():
            p = q.params(v)
        samples_SBH = antithetic(noise["response"].movedim(-2, -3))
        moved = best_response(self, nets.energy, q, theta, features.f, p, samples_SBH)
        eps_LBH, energy = noise["latent"][-1].movedim(-2, -3)[:1], nets.energy.at(theta)

        def log_density(x: Tensor) -> Tensor:
            return log_ratio(energy, q, moved, energy.features(x), self.latents(q, moved.p, eps_LBH))

        def score() -> Tensor:
            return features.pull(self.cotangent(energy, q, moved, features.f, eps_LBH))

        return ScoreEstimate(log_density, score, info=moved.info)

    def latents(self, q: Posterior, p: Any, noise_LBH: Tensor) -> Tensor:
        """Return the samples of h that a score is taken at: of each noise, and of its mirror unless it is 'single'."""
        return q.rsample(p, noise_LBH if self.response_score == "single" else torch.cat([noise_LBH, -noise_LBH]))

    def cotangent(self, energy: Energy, q: Posterior, moved: Moved, f: Any, noise_LBH: Tensor) -> Any:
        """Return u = d/df of `log_ratio` at fixed samples of q(eta^) made of the noise; the score is J^T u.

        u carries gradients of theta and f, those through h and eta^ included. The mean over q(eta^) of d/df log q is
        zero, so with score 'mean' u is -d E_q[head]/df, in closed form if the head has it, else over pairs. Over pairs
        the terms of log q cancel if only the mean of q moves, and are left out.
        """
        gaussian = isinstance(q, modules.Gaussian)
        if self.response_score == "mean" and gaussian and energy.has_expectations:
            return -expected(energy, "pull", f, moved.p)
        if self.response_score != "single" and gaussian and self.response_block == "mean":
            return vaes(energy, f, self.latents(q, moved.p, noise_LBH))
        p, pull = autodiff.vjp(moved.respond, f)
        h_LBH = self.latents(q, p, noise_LBH)
        by_p, _ = autodiff.grad(lambda y: (q.log_prob(y, h_LBH).mean(0).sum(), ()), p)
        return autodiff.tree_map(torch.sub, vaes(energy, f, h_LBH), pull(by_p))


KINDS = declared(BestResponse, (Unroll, Newton))


def log_ratio(energy: Energy, q: Posterior, moved: Moved, f: Any, h_LBH: Tensor) -> Tensor:
    """Return mean_i log p~(v, h_i) - log q(h_i; eta^(f, theta)) [B], at fixed h: BiSM's log density."""
    return (-energy.head(f, h_LBH) - q.log_prob(moved.respond(f), h_LBH)).mean(0)


def vaes(energy: Energy, f: Any, h_LBH: Tensor) -> Any:
    """Return mean_i -d head(f, h_i)/df, whose J^T is VaES. With h_i = rsample(eta^, noise_i) its gradient goes through
    h and eta^: pathwise, where VaGES has a covariance. In a loss that squares the score the same samples in value and
    gradient leave a bias that falls as 1/L (of pairs: that of what is even in the noise)."""
    return autodiff.grad(lambda x: (-energy.head(x, h_LBH).mean(0).sum(), ()), f)[0]
