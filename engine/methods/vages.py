"""Variational estimates of the score and of its gradient (Bao et al. 2021), and the importance sampling baseline.

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

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from eblvm.engine.autodiff.curvature import score_and_curvature
from eblvm.engine.autodiff.derivatives import grad, vjp
from eblvm.engine.methods.bilevel import VariationalScore, pulled
from eblvm.engine.methods.estimators.importance import Importance
from eblvm.engine.methods.estimators.vages import Vages
from eblvm.engine.methods.types import Batch, Info, Noise, Rates, ScoreEstimate
from eblvm.engine.nets.base import call
from eblvm.engine.optim.optimizers import Moments
from eblvm.engine.types import Params
from eblvm.kernels import philox
from eblvm.kernels.philox import Key, Purpose, purpose


@dataclass(frozen=True)
class Langevin:
    """C steps h + alpha/2 grad_h log p~(v, h) + std z that bring samples of q closer to p(h|v) (appendix F.2.2)."""

    steps: int = 0
    alpha: float = 0.0
    std: float = 0.0

    def draw(self, key: Key, count: int, shape: tuple[int, int], kwargs: dict[str, Any]) -> list[Tensor]:
        drawn = philox.streams(philox.normal, self.steps, key, purpose(Purpose.LATENT_CHAIN), count, shape, **kwargs)
        return [z.movedim(-2, -3) for z in drawn]

    def __call__(self, log_p: Callable[[Tensor], Tensor], h: Tensor, noise: Sequence[Tensor]) -> Tensor:
        for z in noise:
            slope, _ = grad(lambda x: (log_p(x).sum(), ()), h)
            h = h + 0.5 * self.alpha * slope + self.std * z
        return h


NO_LANGEVIN = Langevin()


@dataclass(frozen=True)
class SampledScore(VariationalScore):
    """What VaGES and importance sampling share: sets of L samples of h, held fixed, after the steps on q.

    Each then gives its `estimate` at f = features(v), whose transposed Jacobian is `pull`, from the samples h of the
    posterior with parameters q."""

    options: Vages | Importance
    batch_axes = {"latent": 1, "samples": 1, "langevin": 1}  # noqa: RUF012

    @property
    def langevin(self) -> Langevin:
        options = self.options
        if not isinstance(options, Vages) or not options.C:
            return NO_LANGEVIN
        return Langevin(options.C, options.alpha(self.posterior.latent), options.langevin_noise)

    @property
    def sets(self) -> int:
        return 1

    @property
    def steps(self) -> int:
        return self.options.K + 1

    def draw(self, key: Key, count: int, kwargs: dict[str, Any]) -> Noise:
        """The noise of q's steps, "samples" [sets * L, B, H] and, for each step on them, "langevin" of that shape."""
        shape = (self.sets * self.options.L, self.posterior.latent)
        samples = self.posterior.noise(key, purpose(Purpose.LATENT_SAMPLE), count, shape, **kwargs)
        chains = self.langevin.draw(key, count, shape, kwargs)
        return super().draw(key, count, kwargs) | {"samples": samples.movedim(-2, -3), "langevin": chains}

    def __call__(
        self, theta: Params, phi: Params, phi_opt: Moments, batches: Sequence[Batch], noise: Noise, rates: Rates
    ) -> tuple[ScoreEstimate, Params, Moments, Info]:
        v = batches[-1].v
        f, pull = vjp(lambda x: call(self.energy, theta, "features", x), v)
        lower = (self.features(f, batches), batches, noise["latent"], rates)
        phi, phi_opt, info = self.real_steps(theta, phi, phi_opt, *lower)
        q, h = self.samples(theta, f, phi, v, noise)
        if self.langevin.steps:
            info["langevin"] = h.square().mean()  # chains that diverge show here first

        def back(u: Any, keep: bool = False) -> Any:
            return pulled(pull, u, rates.get("scale"), keep)

        return self.estimate(theta, v, f, back, q, h), phi, phi_opt, info

    def estimate(
        self, theta: Params, v: Tensor, f: Any, pull: Callable[..., Any], q: Params, h: Tensor
    ) -> ScoreEstimate:
        raise NotImplementedError

    @torch.no_grad()
    def samples(self, theta: Params, f: Any, phi: Params, v: Tensor, noise: Noise) -> tuple[Params, Tensor]:
        """(parameters of the posterior that was sampled, h [sets * L, B, H]), neither with a derivative."""
        theta, f = tree_map(Tensor.detach, (theta, f))
        if self.options.posterior.exact:
            phi = call(self.energy, theta, "linear_posterior")
        h = self.posterior.sample(call(self.posterior, phi, "params", v), noise["samples"])
        return phi, self.langevin(lambda x: -call(self.energy, theta, "head", f, x), h, noise["langevin"])


@dataclass(frozen=True)
class VagesScore(SampledScore):
    """VaES and VaGES. Independent `samples` are a set each for the loss's cotangent, for the second-order term and for
    the covariance, without which products of estimates are biased; else one set serves all three. `covariance` is
    'unbiased' (over L-1), 'biased' (over L) or 'none', which leaves VaES with its samples held fixed. `control_variate`
    subtracts grad_v log q(h_i|v), whose mean is zero, from VaES (appendix H)."""

    options: Vages

    @property
    def independent(self) -> bool:
        return self.options.samples == "independent"

    @property
    def sets(self) -> int:
        return 3 if self.independent else 1

    def estimate(
        self, theta: Params, v: Tensor, f: Any, pull: Callable[..., Any], q: Params, h: Tensor
    ) -> ScoreEstimate:
        of_value, of_slope, of_covariance = h.chunk(3) if self.independent else (h, h, h)

        def log_p(x: Any, h: Tensor) -> Tensor:
            return -call(self.energy, theta, "head", x, h)

        def tilt() -> Tensor | None:
            """t_i / (L-1) [L, B]: zero, with the gradient of log p~(v, h_i) less its mean over i."""
            if self.options.covariance == "none":
                return None
            l_LB = log_p(f, of_covariance)
            t_LB = l_LB - l_LB.detach()
            return (t_LB - t_LB.mean(0)) / (self.options.L - (self.options.covariance == "unbiased"))

        def score() -> Tensor:
            """VaES at the first set in value, VaGES at the other two in gradient."""
            with torch.no_grad():
                zero_mean = self._control_variate(q, v, of_value) if self.options.control_variate else 0.0
                if self.independent:
                    u, _ = grad(lambda x: (log_p(x, of_value).mean(0).sum(), ()), tree_map(Tensor.detach, f))
                    value = pull(u, keep=True) - zero_mean
            t_LB = tilt()

            def tilted(x: Any) -> tuple[Tensor, tuple[()]]:
                mean = log_p(x, of_slope).mean(0).sum()
                return mean if t_LB is None else mean + (t_LB * log_p(x, of_covariance)).sum(), ()

            s = pull(grad(tilted, f)[0])
            return value + (s - s.detach()) if self.independent else s - zero_mean

        def sliced(directions: Tensor) -> tuple[Tensor, Tensor]:
            """1/2 |s|^2 [B] and u^T (grad_v^2 log p) u [M, B], by the moments of the posterior that make it up:

            grad_v^2 log p = E [grad_v^2 log p~ + grad_v log p~ grad_v log p~^T] - s s^T, each E with VaGES's gradient.
            """

            def moment(h_BH: Tensor) -> Tensor:
                slope, curvature = score_and_curvature(
                    lambda x: -call(self.energy, theta, "energy", x, h_BH), v, directions
                )
                return curvature + _along(directions, slope).square()

            s, t_LB = score(), tilt()
            covariance: Tensor | float = 0.0
            if t_LB is not None:
                with torch.no_grad():
                    weighed = torch.stack([moment(h_BH) for h_BH in of_covariance])
                covariance = (t_LB[:, None] * weighed).sum(0)
            second = torch.stack([moment(h_BH) for h_BH in of_slope]).mean(0) + covariance
            return 0.5 * s.square().flatten(1).sum(1), second - _along(directions, s).square()

        return ScoreEstimate(None, score, sliced=sliced)

    def _control_variate(self, q: Params, v: Tensor, h: Tensor) -> Tensor:
        """mean_i grad_v log q(h_i|v), of mean zero under q."""

        def log_q(x: Tensor) -> Tensor:
            return self.posterior.log_prob(call(self.posterior, q, "params", x), h).mean(0).sum()

        return grad(lambda x: (log_q(x), ()), v)[0]


def _along(directions: Tensor, x: Tensor) -> Tensor:
    """u.x [M, B] for directions u [M, B, ...] and x [B, ...]."""
    return (directions * x).flatten(2).sum(2)


@dataclass(frozen=True)
class ImportanceScore(SampledScore):
    """log p(v) ~ log mean_i p~(v, h_i) / q(h_i|v) and its score, sum_i r_i grad_v log p~(v, h_i), r_i ~ p~ / q.

    A uniform proposal is the posterior with logits of zero in the place of q's."""

    options: Importance

    @property
    def uniform(self) -> bool:
        return self.options.proposal == "uniform"

    @torch.no_grad()
    def samples(self, theta: Params, f: Any, phi: Params, v: Tensor, noise: Noise) -> tuple[Params, Tensor]:
        if not self.uniform:
            return super().samples(theta, f, phi, v, noise)
        return phi, self.posterior.sample(v.new_zeros(len(v), self.posterior.latent), noise["samples"])

    def estimate(
        self, theta: Params, v: Tensor, f: Any, pull: Callable[..., Any], q: Params, h: Tensor
    ) -> ScoreEstimate:
        with torch.no_grad():
            p = v.new_zeros(h.shape[1:]) if self.uniform else call(self.posterior, q, "params", v)
            log_q_LB = self.posterior.log_prob(p, h)

        def log_density(x: Tensor) -> Tensor:
            return (-call(self.energy, theta, "energy", x, h) - log_q_LB).logsumexp(0)

        def score() -> Tensor:
            u, _ = grad(lambda x: ((-call(self.energy, theta, "head", x, h) - log_q_LB).logsumexp(0).sum(), ()), f)
            return pull(u)

        return ScoreEstimate(log_density, score)
