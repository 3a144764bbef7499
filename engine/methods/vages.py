"""Variational estimates of the score and of its gradient (Bao et al. 2021).

    VaES    s(v) = mean_i grad_v log p~(v, h_i),   h_i ~ q(h|v)
    VaGES   ds/dtheta = mean_i d grad_v log p~(v, h_i)/dtheta + cov_i(grad_v log p~(v, h_i), grad_theta log p~(v, h_i))

With E(v, h) = head(f, h), f = features(v) and u_i = -d head(f, h_i)/df, all of it is one cotangent through the
features, whatever the number L of samples:

    s = J^T [mean_i u_i + sum_i t_i u_i / (L-1)],   t_i = l_i - stop(l_i) less its mean over i,   l_i = log p~(v, h_i).

t_i is zero, so it does not change the value; its gradient is that of log p~. Against the cotangent z of a loss on s it
gives sum_i <J z, u_i - mean u> grad_theta l_i / (L-1), the covariance, in the backward pass that the first term needs
anyway. No per-sample gradient is ever formed.

Shape tags: L samples, M directions, B batch, H latent units.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from eblvm.engine import autodiff
from eblvm.engine.errors import UserError
from eblvm.engine.methods import fused_grbm
from eblvm.engine.methods.base import Gradient, Info, Nets, Noise, Rates, Rows
from eblvm.engine.methods.estimates import Batch, Features, Loss, ScoreEstimate
from eblvm.engine.methods.lower_level import LowerLevel
from eblvm.engine.optim.base import Weights
from eblvm.engine.options import option
from eblvm.engine.types import Params
from eblvm.kernels import philox

if TYPE_CHECKING:
    from torch import Tensor

    from eblvm.engine.config import Config

ALPHA_PER_UNIT = 2e-4  # of one latent unit: 1e-2 for the 50 of the paper


class SampledEstimator(LowerLevel):
    """Sets of L samples of h from q, without a derivative, after the steps on q."""

    L: int = option(2, "samples of h in an estimate", low=1)

    @property
    def sets(self) -> int:
        """The number of sets."""
        return 1

    def respond(
        self, nets: Nets, theta: Params, f: Any, phi: Weights, batches: Sequence[Batch], noise: Noise, rates: Rates
    ) -> tuple[Any, Weights, Info]:
        """Return q's parameters after its real steps, or those of the model's own posterior."""
        phi, info = self.real_steps(nets, theta, f, phi, batches, noise, rates)
        if not self.posterior.exact:
            return phi.params, phi, info
        with torch.no_grad():
            return nets.energy.at(autodiff.detached(theta)).linear_posterior(), phi, info

    def draw(self, nets: Nets, key: philox.Key, rows: Rows) -> Noise:
        """Return the noise of q's steps, and "samples" [B, sets * L, H]."""
        shape, purpose = (self.sets * self.L, nets.posterior.latent), philox.purpose(philox.Purpose.LATENT_SAMPLE)
        samples = nets.posterior.noise(key, purpose, rows.samples, shape, **rows.place)
        return super().draw(nets, key, rows) | {"samples": samples}


class Vages(SampledEstimator):
    """VaES with VaGES's gradient. Independent `samples` are a set each for the loss's cotangent, for the second-order
    term and for the covariance, without which products of estimates are biased; else one set is used for all three."""

    kind = "vages"
    prefix = "vages-"
    plans = True
    scales_gradients = False

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

    @property
    def independent(self) -> bool:
        return self.samples == "independent"

    @property
    def sets(self) -> int:
        return 3 if self.independent else 1

    def check(self, config: Config) -> None:
        super().check(config)
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
        """Return the Langevin step size for H latent units."""
        return self.langevin_alpha or ALPHA_PER_UNIT * latent

    def draw(self, nets: Nets, key: philox.Key, rows: Rows) -> Noise:
        """Add "langevin", noise of that shape for each step on the samples."""
        shape, purpose = (self.sets * self.L, nets.posterior.latent), philox.purpose(philox.Purpose.LATENT_CHAIN)
        langevin = philox.streams(philox.normal, self.C, key, purpose, rows.samples, shape, **rows.place)
        return super().draw(nets, key, rows) | {"langevin": langevin}

    def estimate(
        self, nets: Nets, theta: Params, response: Any, features: Features, batch: Batch, noise: Noise, rates: Rates
    ) -> ScoreEstimate:
        energy, f, v = nets.energy.at(theta), features.f, batch.v
        h = self._drawn(nets, autodiff.detached(theta), autodiff.detached(f), response, v, noise)
        of_value, of_slope, of_covariance = h.chunk(3) if self.independent else (h, h, h)

        def tilt() -> Tensor | None:
            """Return t_i / (L-1) [L, B]: zero, with the gradient of log p~(v, h_i) less its mean over i."""
            if self.covariance == "none":
                return None
            l_LB = -energy.head(f, of_covariance)
            t_LB = l_LB - l_LB.detach()
            return (t_LB - t_LB.mean(0)) / (self.L - (self.covariance == "unbiased"))

        def score() -> Tensor:
            """Return VaES at the first set in value, with VaGES at the other two as its gradient."""
            with torch.no_grad():
                zero_mean = self._control_variate(nets, response, v, of_value) if self.control_variate else 0.0
                if self.independent:
                    u, _ = autodiff.grad(lambda x: (-energy.head(x, of_value).mean(0).sum(), ()), autodiff.detached(f))
                    value = features.pull(u, keep=True) - zero_mean
            t_LB = tilt()

            def tilted(x: Any) -> tuple[Tensor, tuple[()]]:
                mean = -energy.head(x, of_slope).mean(0).sum()
                return mean if t_LB is None else mean + (t_LB * -energy.head(x, of_covariance)).sum(), ()

            s = features.pull(autodiff.grad(tilted, f)[0])
            return value + (s - s.detach()) if self.independent else s - zero_mean

        def sliced(directions: Tensor) -> tuple[Tensor, Tensor]:
            """Return 1/2 |s|^2 [B] and u^T (grad_v^2 log p) u [M, B], by the moments of the posterior:

            grad_v^2 log p = E [grad_v^2 log p~ + grad_v log p~ grad_v log p~^T] - s s^T, each E with VaGES's gradient.
            """

            def moment(h_BH: Tensor) -> Tensor:
                slope, curvature = autodiff.score_and_curvature(lambda x: -energy.energy(x, h_BH), v, directions)
                return curvature + _along(directions, slope).square()

            s, t_LB = score(), tilt()
            covariance: Tensor | float = 0.0
            if t_LB is not None:
                with torch.no_grad():
                    weighed = torch.stack([moment(h_BH) for h_BH in of_covariance])
                covariance = (t_LB[:, None] * weighed).sum(0)
            second = torch.stack([moment(h_BH) for h_BH in of_slope]).mean(0) + covariance
            return 0.5 * s.square().flatten(1).sum(1), second - _along(directions, s).square()

        info = {"langevin": h.square().mean()} if self.C else {}  # chains that diverge show here first
        return ScoreEstimate(None, score, sliced=sliced, info=info)

    def _drawn(self, nets: Nets, theta: Params, f: Any, q: Params, v: Tensor, noise: Noise) -> Tensor:
        """Return samples of q [sets * L, B, H] after C steps h + alpha/2 grad_h log p~(v, h) + std z (F.2.2)."""
        posterior, energy, alpha = nets.posterior.at(q), nets.energy.at(theta), self.alpha(nets.posterior.latent)
        with torch.no_grad():
            h = posterior.sample(posterior.params(v), noise["samples"].movedim(-2, -3))
            for z in noise["langevin"]:
                slope, _ = autodiff.grad(lambda x: (-energy.head(f, x).sum(), ()), h)
                h = h + 0.5 * alpha * slope + self.langevin_noise * z.movedim(-2, -3)
        return h

    def _control_variate(self, nets: Nets, q: Params, v: Tensor, h: Tensor) -> Tensor:
        """Return mean_i grad_v log q(h_i|v), of mean zero under q (appendix H)."""
        posterior = nets.posterior.at(q)
        return autodiff.grad(lambda x: (posterior.log_prob(posterior.params(x), h).mean(0).sum(), ()), v)[0]

    def fused(self, nets: Nets, loss: Loss, device: torch.device, dtype: torch.dtype) -> Gradient | None:
        return None if self.C else fused_grbm.sampled_gradient_for(self, loss, nets, device, dtype)


def _along(directions: Tensor, x: Tensor) -> Tensor:
    """Return u.x [M, B] for directions u [M, B, ...] and x [B, ...]."""
    return (directions * x).flatten(2).sum(2)
