"""Estimators of the marginal score grad_v log p(v; theta) that a score loss is applied to: exact, and BiSM's.

`estimator(theta, phi, phi_opt, batches, noise, rates) -> (Surrogate, phi, phi_opt, info)` gives the surrogate at the
last batch together with the posterior's next real state. `batches` holds one batch (shared noise: the same empirical
lower objective in every step, so the features are computed once) or one a step (fresh noise). `noise` is what the
estimator's own `draw` has drawn. VaGES has a file of its own.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Self

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from eblvm.engine.bilevel.derivatives import grad, vjp
from eblvm.engine.bilevel.optimizers import Adam, Moments, Sgd
from eblvm.engine.bilevel.unroll import unroll
from eblvm.engine.models.energy import Energy, Params, call
from eblvm.engine.models.posteriors import Posterior
from eblvm.engine.objectives.divergences import Divergence, kl_exact, linear_step_size
from eblvm.engine.objectives.score_losses import Batch, Surrogate
from eblvm.kernels import philox
from eblvm.kernels.philox import Key, Purpose, purpose

Rates = dict[str, Tensor]  # 0-dimensional learning rates: "theta", "phi", "unroll"
Info = dict[str, Tensor]
Noise = dict[str, Any]


@dataclass(frozen=True)
class FreeEnergy:
    """The exact marginal: log p(v) = -F(v) + const, for energies with a tractable free energy."""

    energy: Energy
    steps = 0

    def __call__(
        self,
        theta: Params,
        phi: Params,
        phi_opt: Moments,
        batches: Sequence[Batch],
        noise: Noise,
        rates: Rates,
    ) -> tuple[Surrogate, Params, Moments, Info]:
        v = batches[-1].v

        def log_density(x: Tensor) -> Tensor:
            return -call(self.energy, theta, "free_energy", x)

        def score() -> Tensor:
            return grad(lambda x: (log_density(x).sum(), ()), v)[0]

        def closed_form(method: str) -> Callable[..., Any] | None:
            return partial(call, self.energy, theta, method, v) if hasattr(self.energy, method) else None

        surrogate = Surrogate(
            log_density, closed_form("score") or score, closed_form("laplacian"), closed_form("sliced")
        )
        return surrogate, phi, phi_opt, {}


class Variational:
    """An estimator with a posterior q(h|v; phi) that follows the model: K real steps of Adam a minibatch on the mean of
    the divergence D(q(h|v) || p(h|v)) (BiSM Eq. 12)."""

    energy: Energy
    posterior: Posterior
    divergence: Divergence
    K: int
    lower_optimizer: Adam
    lower_samples: int  # of h in the divergence

    @property
    def steps(self) -> int:
        raise NotImplementedError

    def __call__(
        self, theta: Params, phi: Params, phi_opt: Moments, batches: Sequence[Batch], noise: Noise, rates: Rates
    ) -> tuple[Surrogate, Params, Moments, Info]:
        raise NotImplementedError

    def at_rest(self) -> Self:
        """The same estimate without any step on q."""
        raise NotImplementedError

    def draw(self, key: Key, count: int, place: dict[str, Any]) -> Noise:
        """{"latent": [S, B, H] for each step}, S samples of h."""
        steps, sizes = self.steps, (count, (self.lower_samples, self.posterior.latent))
        if self.divergence is kl_exact:
            # It reads no samples: only `validation` (the first) and the upper level (the last) do.
            start, end = (
                self.posterior.noise(key, purpose(Purpose.LATENT, i), *sizes, **place).movedim(-2, -3)
                for i in (0, steps - 1)
            )
            return {"latent": [*[start] * (steps - 1), end]}
        drawn = philox.streams(self.posterior.noise, steps, key, purpose(Purpose.LATENT), *sizes, **place)
        return {"latent": [latent.movedim(-2, -3) for latent in drawn]}

    @torch.no_grad()
    def real_steps(
        self, theta: Params, f: Any, phi: Params, phi_opt: Moments, batches: Sequence[Batch], noise: Noise, rates: Rates
    ) -> tuple[Params, Moments, Info]:
        """phi after K real steps at fixed theta, its moments, and the last divergence; f are the shared features."""
        (theta, f), info = tree_map(Tensor.detach, (theta, f)), {}
        for k in range(self.K):
            lower = partial(self._lower_loss, *self._context(k, theta, f, batches, noise))
            gradient, info["lower"] = grad(lower, phi)
            phi, phi_opt = self.lower_optimizer.step(phi, gradient, phi_opt, rates["phi"])
        return phi, phi_opt, info

    def gap(self, theta: Params, phi: Params, batch: Batch, noise: Tensor) -> Tensor:
        """The mean divergence between q and the model's posterior on a batch, up to what a KL leaves out."""
        f = call(self.energy, theta, "features", batch.v)
        return self._lower_loss(theta, f, batch.v, batch.lower_weight, noise, phi)[1]

    def _context(
        self, step: int, theta: Params, f: Any, batches: Sequence[Batch], noise: Noise
    ) -> tuple[Params, Any, Tensor, Tensor, Tensor]:
        """What step `step` on q reads: theta, features, v, the samples' weights, noise."""
        shared = len(batches) == 1
        batch = batches[0 if shared else step]
        if not shared:
            f = call(self.energy, theta, "features", batch.v)
        return theta, f, batch.v, batch.lower_weight, noise["latent"][step]

    def _lower_loss(
        self, theta: Params, f: Any, v: Tensor, weight: Tensor, noise: Tensor, phi: Params
    ) -> tuple[Tensor, Tensor]:
        """The lower level's loss, and the mean divergence as it is logged."""
        p = call(self.posterior, phi, "params", v)
        d_B = self.divergence(lambda h: call(self.energy, theta, "head", f, h), self.posterior, p, noise)
        return (weight * d_B).mean(), d_B.detach().mean()


@dataclass(frozen=True)
class Bism(Variational):
    """Bi-level score matching (BiSM Algorithm 1): s(v) = grad_v [log p~(v, h) - log q(h|v; phi_N)], h ~ q(h|v; phi_N).

    phi takes K real steps on the divergence; phi_N follows by N unrolled steps through which theta's gradient flows.
    `exact_posterior` puts the model's own p(h|v) in the place of q (Theorem 1's premise), with no steps.
    """

    energy: Energy
    posterior: Posterior
    divergence: Divergence
    K: int
    N: int
    unroll_optimizer: Adam | Sgd
    unroll_memory: str
    lower_optimizer: Adam
    auto_unroll_rate: bool = False  # SGD's step size from the batch, see `linear_step_size`
    exact_posterior: bool = False
    lower_samples: int = 1

    @property
    def steps(self) -> int:
        return self.K + self.N + 1

    def at_rest(self) -> Self:
        return replace(self, K=0, N=0)

    def __call__(
        self,
        theta: Params,
        phi: Params,
        phi_opt: Moments,
        batches: Sequence[Batch],
        noise: Noise,
        rates: Rates,
    ) -> tuple[Surrogate, Params, Moments, Info]:
        v, N = batches[-1].v, self.N
        # The only pass of the features when the noise is shared; `pull` is its transposed Jacobian.
        f, pull = vjp(lambda x: call(self.energy, theta, "features", x), v)
        phi, phi_opt, info = self.real_steps(theta, f, phi, phi_opt, batches, noise, rates)

        unrolled = phi
        if self.exact_posterior:
            unrolled = call(self.energy, theta, "linear_posterior")
        elif N:
            with torch.no_grad():
                rate = linear_step_size(v) if self.auto_unroll_rate else rates["unroll"]
            contexts = [(*self._context(self.K + n, theta, f, batches, noise), rate) for n in range(N)]
            moments = () if isinstance(self.unroll_optimizer, Sgd) else phi_opt
            unrolled = unroll(self._unrolled_step, phi, moments, contexts, self.unroll_memory)

        h = self.posterior.rsample(call(self.posterior, unrolled, "params", v), noise["latent"][-1][0])

        def log_q(x: Tensor) -> Tensor:
            return self.posterior.log_prob(call(self.posterior, unrolled, "params", x), h)

        def log_density(x: Tensor) -> Tensor:
            return -call(self.energy, theta, "energy", x, h) - log_q(x)

        def score() -> Tensor:
            u, _ = grad(lambda x: (-call(self.energy, theta, "head", x, h).sum(), ()), f)
            return pull(u) - grad(lambda x: (log_q(x).sum(), ()), v)[0]

        return Surrogate(log_density, score), phi, phi_opt, info

    def _unrolled_step(self, phi: Params, opt: Moments, context: tuple[Any, ...]) -> tuple[Params, Moments]:
        *inputs, rate = context
        gradient, _ = grad(partial(self._lower_loss, *inputs), phi)
        return self.unroll_optimizer.step(phi, gradient, opt, rate)
