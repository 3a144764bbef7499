"""Estimates of the marginal score grad_v log p(v; theta) that a score loss is applied to: exact, and BiSM's.

`estimator(theta, phi, phi_opt, batches, noise, rates) -> (ScoreEstimate, phi, phi_opt, info)` gives the estimate at the
last batch together with the posterior's next real state. `batches` holds one batch (shared noise: the same empirical
lower objective in every step, so the features are computed once) or one per step (fresh noise). `noise` is what the
estimator's own `draw` has drawn. VaGES has a file of its own; the options of all are in `estimators/`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar, NamedTuple, Self

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from eblvm.engine.autodiff import collectives
from eblvm.engine.autodiff.derivatives import grad, vjp
from eblvm.engine.autodiff.ranges import named
from eblvm.engine.autodiff.unroll import unroll
from eblvm.engine.errors import UserError
from eblvm.engine.methods import fisher_lower, newton
from eblvm.engine.methods.estimators import LowerLevel
from eblvm.engine.methods.estimators.bism import Bism
from eblvm.engine.methods.responses import Newton
from eblvm.engine.methods.types import Batch, Info, Noise, Rates, ScoreEstimate
from eblvm.engine.nets.base import Energy, call
from eblvm.engine.nets.posteriors import Gaussian, Posterior
from eblvm.engine.optim.optimizers import Moments, Optimizer, Sgd
from eblvm.engine.optim.step_size import linear_step_size
from eblvm.engine.types import Params
from eblvm.kernels import philox
from eblvm.kernels.adam_unroll import clipped
from eblvm.kernels.philox import Key, Purpose, purpose

Features = Callable[[int, Params], Any]  # features of a lower step's batch, at given parameters


class HeadAt(NamedTuple):
    """The energy as a function of h, at fixed theta and features f."""

    energy: Energy
    theta: Params
    f: Any

    def __call__(self, h: Tensor) -> Tensor:
        return call(self.energy, self.theta, "head", self.f, h)

    def expected(self, p: Any) -> Tensor:
        """E_q[head] for a Gaussian q, by the head's closed expectations."""
        if not self.energy.has_expectations:
            raise UserError(
                "divergence 'kl-exact' with a Gaussian q needs the energy's mean over q, which "
                f"{type(self.energy).__name__} does not know; use --divergence kl"
            )
        return call(self.energy, self.theta, "expected", "head", self.f, *p)


@dataclass(frozen=True)
class ExactScore:
    """The exact marginal: log p(v) = -F(v) + const, for energies with a tractable free energy."""

    energy: Energy
    batch_axes: ClassVar[dict[str, int]] = {}
    batches_per_step = 1

    def __call__(
        self,
        theta: Params,
        phi: Params,
        phi_opt: Moments,
        batches: Sequence[Batch],
        noise: Noise,
        rates: Rates,
    ) -> tuple[ScoreEstimate, Params, Moments, Info]:
        v = batches[-1].v

        def log_density(x: Tensor) -> Tensor:
            return -call(self.energy, theta, "free_energy", x)

        def score() -> Tensor:
            return grad(lambda x: (log_density(x).sum(), ()), v, rates.get("scale"))[0]

        def closed_form(method: str) -> Callable[..., Any] | None:
            return partial(call, self.energy, theta, method, v) if hasattr(self.energy, method) else None

        estimate = ScoreEstimate(
            log_density, closed_form("score") or score, closed_form("laplacian"), closed_form("sliced")
        )
        return estimate, phi, phi_opt, {}


@dataclass(frozen=True)
class VariationalScore:
    """An estimate with a posterior q(h|v; phi) that follows the model: K real steps of Adam per minibatch on the mean
    of the divergence D(q(h|v) || p(h|v)) (BiSM Eq. 12)."""

    options: LowerLevel
    energy: Energy
    posterior: Posterior
    optimizer: Optimizer  # of phi
    batch_axes: ClassVar[dict[str, int]] = {"latent": 1}  # of the noise that `draw` gives

    @property
    def batches_per_step(self) -> int:
        """Perturbed batches: one for all lower steps, or one for each."""
        return 1 if self.options.noise == "shared" else max(self.steps, 1)

    @property
    def steps(self) -> int:
        raise NotImplementedError

    def __call__(
        self, theta: Params, phi: Params, phi_opt: Moments, batches: Sequence[Batch], noise: Noise, rates: Rates
    ) -> tuple[ScoreEstimate, Params, Moments, Info]:
        raise NotImplementedError

    def with_options(self, **changes: Any) -> Self:
        return replace(self, options=replace(self.options, **changes))

    def without_steps(self) -> Self:
        """The same estimate without any step on q."""
        return self.with_options(K=0)

    def draw(self, key: Key, count: int, kwargs: dict[str, Any]) -> Noise:
        """{"latent": [S, B, H] for each step}, S samples of h."""
        divergence, steps = self.options.divergence, self.steps
        sizes = (count, (divergence.latent_samples, self.posterior.latent))
        if not divergence.reads_samples:  # it reads no samples: the upper level alone does
            return {
                "latent": [self.posterior.noise(key, purpose(Purpose.LATENT), *sizes, **kwargs).movedim(-2, -3)] * steps
            }
        drawn = philox.streams(self.posterior.noise, steps, key, purpose(Purpose.LATENT), *sizes, **kwargs)
        return {"latent": [latent.movedim(-2, -3) for latent in drawn]}

    def features(self, f: Any, batches: Sequence[Batch]) -> Features:
        """f for every step if all share one batch, else those of the step's own."""
        if len(batches) == 1:
            return lambda step, theta: f
        return lambda step, theta: call(self.energy, theta, "features", batches[step].v)

    @torch.no_grad()
    def real_steps(
        self,
        theta: Params,
        phi: Params,
        phi_opt: Moments,
        features: Features,
        batches: Sequence[Batch],
        latents: Sequence[Tensor],
        rates: Rates,
    ) -> tuple[Params, Moments, Info]:
        """phi after its K steps on the divergence, at `features(step, theta)`; theta gets no gradient."""
        theta = tree_map(Tensor.detach, theta)
        info: Info = {}
        f_k: Any = None
        head: fisher_lower.Head | None = None
        for k in range(self.options.K):
            before, f_k = f_k, features(k, theta)
            if fisher_lower.serves(self.options.divergence, self.energy, self.posterior, f_k):
                assert isinstance(self.posterior, Gaussian)
                head = head if f_k is before and head is not None else fisher_lower.head_of(theta, f_k.detach())
                gradient, r = fisher_lower.fisher_gradient(
                    head, self.posterior, phi, *_lower_batch(batches, k), latents[k], rates.get("scale")
                )
                if k == self.options.K - 1:
                    info["lower"] = 0.5 * r.square().mean() * r.shape[-1]
            else:
                lower = partial(
                    self._lower_loss, theta, tree_map(Tensor.detach, f_k), *_lower_batch(batches, k), latents[k]
                )
                gradient, info["lower"] = grad(lower, phi, rates.get("scale"))
            gradient = self._clipped(collectives.mean(gradient))
            phi, phi_opt = self.optimizer.step(phi, gradient, phi_opt, rates["phi"])
        return phi, phi_opt, info

    def _clipped(self, gradient: Params) -> Params:
        """The gradient for phi, no longer than asked."""
        clip_norm = self.options.lower_clip_norm
        if clip_norm is None:
            return gradient
        return dict(zip(gradient, clipped(list(gradient.values()), 0, clip_norm)[0], strict=True))

    def divergence(self, theta: Params, phi: Params, batch: Batch, noise: Tensor) -> Tensor:
        """The mean divergence between q and the model's posterior on a batch, up to what a KL leaves out."""
        f = call(self.energy, theta, "features", batch.v)
        return self._lower_loss(theta, f, batch.v, batch.lower_weight, noise, phi)[1]

    def _lower_loss(
        self, theta: Params, f: Any, v: Tensor, weight: Tensor, noise: Tensor, phi: Params
    ) -> tuple[Tensor, Tensor]:
        """The lower level's loss, and the mean divergence as it is logged."""
        p = call(self.posterior, phi, "params", v)
        d_B = self.options.divergence(HeadAt(self.energy, theta, f), self.posterior, p, noise)
        return (weight * d_B).mean(), d_B.detach().mean()


@dataclass(frozen=True)
class BilevelScore(VariationalScore):
    """Bi-level score matching (BiSM Algorithm 1): s(v) = grad_v [log p~(v, h) - log q(h|v; phi_N)], h ~ q(h|v; phi_N).

    phi takes K real steps on the divergence; phi_N follows by N unrolled steps through which theta's gradient flows.
    The posterior 'exact' puts the model's own p(h|v) in the place of q (Theorem 1's premise), with no steps.
    """

    options: Bism
    batch_axes: ClassVar[dict[str, int]] = {"latent": 1, "response": 1}

    @property
    def steps(self) -> int:
        return self.options.K + self.options.unrolled + 1

    def without_steps(self) -> Self:
        return self.with_options(K=0, N=0)

    @property
    def unroll_optimizer(self) -> Optimizer | Sgd:
        return Sgd() if self.options.unroll_optimizer == "sgd" else self.optimizer

    def __call__(
        self,
        theta: Params,
        phi: Params,
        phi_opt: Moments,
        batches: Sequence[Batch],
        noise: Noise,
        rates: Rates,
    ) -> tuple[ScoreEstimate, Params, Moments, Info]:
        v, latents = batches[-1].v, noise["latent"]
        # The only pass of the features when the noise is shared; `pull` is its transposed Jacobian.
        with named("features"):
            f, pull = vjp(lambda x: call(self.energy, theta, "features", x), v)
        features = self.features(f, batches)
        with named("lower steps"):
            phi, phi_opt, info = self.real_steps(theta, phi, phi_opt, features, batches, latents, rates)
        if isinstance(self.options.best_response, Newton):
            estimate, newton_info = self.newton_estimate(theta, phi, f, pull, v, noise, rates)
            return estimate, phi, phi_opt, info | newton_info
        with named("unrolled steps"):
            unrolled = self.unrolled_steps(theta, phi, phi_opt, features, batches, latents, rates)
        return self.estimate(theta, unrolled, f, pull, v, latents[-1][0], rates), phi, phi_opt, info

    def unrolled_steps(
        self,
        theta: Params,
        phi: Params,
        phi_opt: Moments,
        features: Features,
        batches: Sequence[Batch],
        latents: Sequence[Tensor],
        rates: Rates,
    ) -> Params:
        """phi_N as a function of theta and the features."""
        if self.options.posterior.exact:
            return call(self.energy, theta, "linear_posterior")
        if not self.options.unrolled:
            return phi
        with torch.no_grad():
            rates = rates | ({"unroll": linear_step_size(batches[-1].v)} if self.options.automatic_step else {})
        K, N = self.options.K, self.options.unrolled
        contexts = [(theta, features(n, theta), *_lower_batch(batches, n), latents[n], rates) for n in range(K, K + N)]
        moments = () if isinstance(self.unroll_optimizer, Sgd) else phi_opt
        return unroll(self._unrolled_step, phi, moments, contexts, self.options.unroll_memory)

    def estimate(
        self, theta: Params, unrolled: Params, f: Any, pull: Callable[..., Any], v: Tensor, noise: Tensor, rates: Rates
    ) -> ScoreEstimate:
        """log p~(v, h) - log q(h|v; phi_N) at h ~ q; `pull` is the transposed Jacobian of f = features(v)."""
        h = self.posterior.rsample(call(self.posterior, unrolled, "params", v), noise)

        def log_q(x: Tensor) -> Tensor:
            return self.posterior.log_prob(call(self.posterior, unrolled, "params", x), h)

        def log_density(x: Tensor) -> Tensor:
            return -call(self.energy, theta, "energy", x, h) - log_q(x)

        def score() -> Tensor:
            u, _ = grad(lambda x: (-call(self.energy, theta, "head", x, h).sum(), ()), f)
            scale = rates.get("scale")
            return pulled(pull, u, scale) - grad(lambda x: (log_q(x).sum(), ()), v, scale)[0]

        return ScoreEstimate(log_density, score)

    def newton_estimate(
        self, theta: Params, phi: Params, f: Any, pull: Callable[..., Any], v: Tensor, noise: Noise, rates: Rates
    ) -> tuple[ScoreEstimate, Info]:
        """The estimate at q's best response to theta and f, see newton.py; q's network has no derivative here."""
        options = self.options.best_response
        assert isinstance(options, Newton)
        with torch.no_grad():
            p = call(self.posterior, phi, "params", v)
        samples = newton.antithetic(noise["response"])
        response = newton.best_response(options, self.energy, self.posterior, theta, f, p, samples)
        eps = noise["latent"][-1][:1]

        def log_density(x: Tensor) -> Tensor:
            h = newton.latents(options, self.posterior, response.p, eps)
            features = call(self.energy, theta, "features", x)
            return newton.log_ratio(self.energy, self.posterior, theta, response, features, h)

        def score() -> Tensor:
            u = newton.cotangent(options, self.energy, self.posterior, theta, response, f, eps)
            return pulled(pull, u, rates.get("scale"))

        return ScoreEstimate(log_density, score), response.info

    def draw(self, key: Key, count: int, kwargs: dict[str, Any]) -> Noise:
        """The noise of q's steps and, for a Newton step, "response" [S, B, H] of its samples of h."""
        noise = super().draw(key, count, kwargs)
        if isinstance(self.options.best_response, Newton):
            shape = (self.options.best_response.response_samples, self.posterior.latent)
            drawn = philox.normal(key, purpose(Purpose.LATENT_SAMPLE), count, shape, **kwargs)
            noise["response"] = drawn.movedim(-2, -3)
        return noise

    def _unrolled_step(self, phi: Params, opt: Moments, context: tuple[Any, ...]) -> tuple[Params, Moments]:
        *inputs, rates = context
        gradient, _ = grad(partial(self._lower_loss, *inputs), phi, rates.get("scale"))
        if self.options.sync == "global":
            gradient = collectives.differentiable_mean(gradient)
        return self.unroll_optimizer.step(phi, gradient, opt, rates["unroll"])


def pulled(pull: Callable[..., Any], u: Any, scale: Tensor | None, keep: bool = False) -> Any:
    """J^T u; in fp16 with u scaled on its way through the network."""
    return pull(u, keep=keep) if scale is None else pull(tree_map(lambda x: x * scale, u), keep=keep) / scale


def _lower_batch(batches: Sequence[Batch], step: int) -> tuple[Tensor, Tensor]:
    """The visible values and weights of a lower step: its own batch's, or the one that all share."""
    batch = batches[0 if len(batches) == 1 else step]
    return batch.v, batch.lower_weight
