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

from eblvm.engine.autodiff import collectives
from eblvm.engine.autodiff.derivatives import grad, vjp
from eblvm.engine.autodiff.mixed_precision import grad_scaled
from eblvm.engine.autodiff.unroll import unroll
from eblvm.engine.methods.divergences import Divergence, kl_exact, linear_step_size
from eblvm.engine.methods.losses import Batch, Surrogate
from eblvm.engine.models.energy import Energy, Params, call
from eblvm.engine.models.posteriors import Posterior
from eblvm.engine.optim.optimizers import Adam, Moments, Sgd
from eblvm.kernels import philox
from eblvm.kernels.philox import Key, Purpose, purpose

Rates = dict[str, Tensor]  # 0-dimensional learning rates: "theta", "phi", "unroll"; in fp16 "scale", of gradients
Info = dict[str, Tensor]
Noise = dict[str, Any]
Features = Callable[[int, Params], Any]  # features of a lower step's batch, at given parameters


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
            return grad_scaled(lambda x: (log_density(x).sum(), ()), v, rates.get("scale"))[0]

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
        if self.divergence is kl_exact:  # it reads no samples: the upper level alone does
            return {
                "latent": [self.posterior.noise(key, purpose(Purpose.LATENT), *sizes, **place).movedim(-2, -3)] * steps
            }
        drawn = philox.streams(self.posterior.noise, steps, key, purpose(Purpose.LATENT), *sizes, **place)
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
        for k in range(self.K):
            f_k = tree_map(Tensor.detach, features(k, theta))
            lower = partial(self._lower_loss, theta, f_k, *_place(batches, k), latents[k])
            gradient, info["lower"] = grad_scaled(lower, phi, rates.get("scale"))
            phi, phi_opt = self.lower_optimizer.step(phi, collectives.mean(gradient), phi_opt, rates["phi"])
        return phi, phi_opt, info

    def gap(self, theta: Params, phi: Params, batch: Batch, noise: Tensor) -> Tensor:
        """The mean divergence between q and the model's posterior on a batch, up to what a KL leaves out."""
        f = call(self.energy, theta, "features", batch.v)
        return self._lower_loss(theta, f, batch.v, batch.lower_weight, noise, phi)[1]

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
    sync: str = "global"  # unrolled steps average over ranks, or stay "local"

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
        v, latents = batches[-1].v, noise["latent"]
        # The only pass of the features when the noise is shared; `pull` is its transposed Jacobian.
        f, pull = vjp(lambda x: call(self.energy, theta, "features", x), v)
        features = self.features(f, batches)
        phi, phi_opt, info = self.real_steps(theta, phi, phi_opt, features, batches, latents, rates)
        unrolled = self.unrolled_steps(theta, phi, phi_opt, features, batches, latents, rates)
        return self.surrogate(theta, unrolled, f, pull, v, latents[-1][0], rates), phi, phi_opt, info

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
        if self.exact_posterior:
            return call(self.energy, theta, "linear_posterior")
        if not self.N:
            return phi
        with torch.no_grad():
            rates = rates | ({"unroll": linear_step_size(batches[-1].v)} if self.auto_unroll_rate else {})
        contexts = [
            (theta, features(n, theta), *_place(batches, n), latents[n], rates) for n in range(self.K, self.K + self.N)
        ]
        moments = () if isinstance(self.unroll_optimizer, Sgd) else phi_opt
        return unroll(self._unrolled_step, phi, moments, contexts, self.unroll_memory)

    def surrogate(
        self, theta: Params, unrolled: Params, f: Any, pull: Callable[..., Any], v: Tensor, noise: Tensor, rates: Rates
    ) -> Surrogate:
        """log p~(v, h) - log q(h|v; phi_N) at h ~ q; `pull` is the transposed Jacobian of f = features(v)."""
        h = self.posterior.rsample(call(self.posterior, unrolled, "params", v), noise)

        def log_q(x: Tensor) -> Tensor:
            return self.posterior.log_prob(call(self.posterior, unrolled, "params", x), h)

        def log_density(x: Tensor) -> Tensor:
            return -call(self.energy, theta, "energy", x, h) - log_q(x)

        def score() -> Tensor:
            u, _ = grad(lambda x: (-call(self.energy, theta, "head", x, h).sum(), ()), f)
            scale = rates.get("scale")
            return pulled(pull, u, scale) - grad_scaled(lambda x: (log_q(x).sum(), ()), v, scale)[0]

        return Surrogate(log_density, score)

    def _unrolled_step(self, phi: Params, opt: Moments, context: tuple[Any, ...]) -> tuple[Params, Moments]:
        *inputs, rates = context
        gradient, _ = grad_scaled(partial(self._lower_loss, *inputs), phi, rates.get("scale"))
        if self.sync == "global":
            gradient = collectives.differentiable_mean(gradient)
        return self.unroll_optimizer.step(phi, gradient, opt, rates["unroll"])


def pulled(pull: Callable[..., Any], u: Any, scale: Tensor | None, keep: bool = False) -> Any:
    """J^T u; in fp16 with u scaled on its way through the network."""
    return pull(u, keep=keep) if scale is None else pull(tree_map(lambda x: x * scale, u), keep=keep) / scale


def _place(batches: Sequence[Batch], step: int) -> tuple[Tensor, Tensor]:
    """The visible values and weights of a lower step: its own batch's, or the one that all share."""
    batch = batches[0 if len(batches) == 1 else step]
    return batch.v, batch.lower_weight
