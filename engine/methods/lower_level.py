"""The lower level: q(h|v; phi) follows the model by steps on a divergence D(q(h|v) || p(h|v)) (BiSM Eq. 10, 12).

A divergence is `divergence(head, posterior, p, noise) -> d[B]`, up to constants in phi: `head` is the energy at the
batch's fixed features, `p` the posterior's parameters at the batch, `noise` [S, B, H] what `posterior.rsample` takes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Self

import torch

from eblvm.engine import autodiff
from eblvm.engine.autodiff import collectives
from eblvm.engine.errors import UserError
from eblvm.engine.methods import fused_fisher
from eblvm.engine.methods.base import Info, Nets, Noise, Rates, Rows, State
from eblvm.engine.methods.estimates import Batch, Estimator
from eblvm.engine.models import posteriors
from eblvm.engine.models.posteriors import Linear, PosteriorOptions
from eblvm.engine.optim.base import Weights
from eblvm.engine.options import Options, declared, option, slot
from eblvm.engine.types import Params
from eblvm.kernels import philox

if TYPE_CHECKING:
    from torch import Tensor

    from eblvm.engine.config import Config
    from eblvm.engine.nets import Energy, Posterior


class Head(NamedTuple):
    """The energy as a function of h, at fixed theta and features f."""

    energy: Energy  # a view at theta
    f: Any

    def __call__(self, h: Tensor) -> Tensor:
        """Return E [..., B] for h [..., B, H]."""
        return self.energy.head(self.f, h)

    def expected(self, p: Any) -> Tensor:
        """Return E_q[head] [B] for a Gaussian q, by the head's closed expectations."""
        if not self.energy.has_expectations:
            raise UserError(
                "divergence 'kl-exact' with a Gaussian q needs the energy's mean over q, which "
                f"{type(self.energy).__name__} does not know; use --divergence kl"
            )
        return self.energy.expected("head", self.f, *p)


class Divergence(Options):
    group = "method"
    reads_samples: ClassVar[bool] = True  # of h, drawn from q
    latent_samples: ClassVar[int] = 1  # of h per sample of v

    def __call__(self, head: Head, posterior: Posterior, p: Any, noise: Tensor) -> Tensor:
        raise NotImplementedError


class Kl(Divergence):
    """E_q [log q(h|v) + E(v, h)] over S reparameterised samples."""

    kind = "kl"
    latent_samples: int = option(1, "samples of h in the divergence", low=1)  # type: ignore[misc]

    def __call__(self, head: Head, posterior: Posterior, p: Any, noise: Tensor) -> Tensor:
        h = posterior.rsample(p, noise)
        return (posterior.log_prob(p, h) + head(h)).mean(0)


class KlExact(Divergence):
    """The same in closed form, -entropy(q) + E_q E(v, h): the gradient has no noise from h. For a Bernoulli q and an
    energy linear in h, and for a Gaussian q and the deep head."""

    kind = "kl-exact"
    needs = ("exact_kl",)
    reads_samples = False

    def __call__(self, head: Head, posterior: Posterior, p: Any, noise: Tensor) -> Tensor:
        if hasattr(posterior, "negative_entropy"):
            return posterior.negative_entropy(p) + head.expected(p)
        mean = posterior.mean(p)
        return posterior.log_prob(p, mean) + head(mean)


class Iwae(Divergence):
    """-E_q log 1/k sum_i p~(v, h_i) / q(h_i|v) over k reparameterised samples (Burda et al. 2016). The KL where k = 1;
    tighter with more, and then at its least for a q wider than the KL's."""

    kind = "iwae"
    latent_samples: int = option(5, "k, samples of h in the bound", low=1)  # type: ignore[misc]

    def __call__(self, head: Head, posterior: Posterior, p: Any, noise: Tensor) -> Tensor:
        h = posterior.rsample(p, noise)
        return math.log(len(noise)) - (-head(h) - posterior.log_prob(p, h)).logsumexp(0)


class Fisher(Divergence):
    """E_q 1/2 |grad_h log q(h|v) + grad_h E(v, h)|^2 over S reparameterised samples, for a continuous h."""

    kind = "fisher"
    needs = ("continuous_h",)
    latent_samples: int = option(1, "samples of h in the divergence", low=1)  # type: ignore[misc]

    def __call__(self, head: Head, posterior: Posterior, p: Any, noise: Tensor) -> Tensor:
        h = posterior.rsample(p, noise)
        difference, _ = autodiff.grad(lambda x: ((posterior.log_prob(p, x) + head(x)).sum(), ()), h)
        return 0.5 * difference.square().sum(-1).mean(0)


DIVERGENCES = declared(Divergence, (KlExact, Fisher, Kl, Iwae))


def written_out(divergence: Divergence, nets: Nets, v: Tensor, f: Any) -> bool:
    """Is the gradient for phi that of fused_fisher? It pays where launches cost: on a GPU."""
    return v.is_cuda and fused_fisher.serves(divergence, nets, f)


class LowerLevel(Estimator):
    """An estimator with a posterior q(h|v; phi) that makes K real steps per minibatch on the mean of a divergence."""

    learns_q = True

    K: int = option(5, "real lower steps on q per minibatch", low=0)
    lower_lr: float | None = option(None, "Adam's learning rate for phi; none: that of theta", above=0)
    lower_clip_norm: float | None = option(None, "clip phi's gradient to this norm, in its K real steps", above=0)
    posterior: PosteriorOptions = slot(posteriors.KINDS, "net of q(h|v); 'exact' is the GRBM's own", Linear())
    divergence: Divergence = slot(DIVERGENCES, "lower level's divergence", KlExact())
    noise: str = option(
        "shared",
        "draw the perturbed batch once per minibatch or in every step",
        choices=("shared", "fresh"),
        needs="perturbs",
    )

    @property
    def unrolled(self) -> int:
        """The number of further steps on q, which theta's gradient flows through."""
        return 0

    @property
    def steps(self) -> int:
        """The number of steps that need noise: those on q, and the estimate."""
        return self.K + self.unrolled + 1

    @property
    def batches_per_step(self) -> int:
        return 1 if self.noise == "shared" else self.steps

    def check(self, config: Config) -> None:
        if self.posterior.exact and self.K:
            raise UserError(f"posterior 'exact' has nothing to step on, got K={self.K}; use --K 0")
        if config.step.micro_batch is not None and self.noise == "fresh":
            raise UserError("micro-batch needs the features of one batch for all lower steps; use --noise shared")

    def rates(self) -> dict[str, float | None]:
        return {"phi": self.lower_lr}

    def without_steps(self) -> Self:
        return replace(self, K=0)

    def nets(self, config: Config, energy: Energy, posterior: Posterior | None, shape: tuple[int, ...]) -> Nets:
        optimizer = config.optimisation.phi_optimizer(clip_norm=self.lower_clip_norm)
        return Nets(energy, posterior or self.posterior.build(shape, config.model), phi_optimizer=optimizer)

    def init_phi(self, nets: Nets, key: philox.Key) -> Weights:
        return nets.phi_optimizer.init(nets.posterior.initial(key))

    def draw(self, nets: Nets, key: philox.Key, rows: Rows) -> Noise:
        """Return "latent", noise of S samples of h [B, S, H] for each step."""
        divergence, q, purpose = self.divergence, nets.posterior, philox.purpose(philox.Purpose.LATENT)
        sizes = (rows.samples, (divergence.latent_samples, q.latent))
        if not divergence.reads_samples:  # the estimate alone reads samples
            return {"latent": [q.noise(key, purpose, *sizes, **rows.place)] * self.steps}
        return {"latent": philox.streams(q.noise, self.steps, key, purpose, *sizes, **rows.place)}

    def real_steps(
        self, nets: Nets, theta: Params, f: Any, phi: Weights, batches: Sequence[Batch], noise: Noise, rates: Rates
    ) -> tuple[Weights, Info]:
        """Return phi after its K steps on the divergence, and what is logged; theta gets no gradient."""
        info: Info = {}
        theta = autodiff.detached(theta)
        energy, head = nets.energy.at(theta), None
        with torch.no_grad(), autodiff.named("lower steps"):
            for k in range(self.K):
                f_k = autodiff.detached(features_at(k, energy, f, batches))
                batch, latent_SBH = batches[k % len(batches)], noise["latent"][k].movedim(-2, -3)
                if written_out(self.divergence, nets, batch.v, f_k):
                    if head is None or len(batches) > 1:
                        head = fused_fisher.head_of(theta, f_k, nets.posterior, batch.v)
                    gradient, r = fused_fisher.gradient(head, nets.posterior, phi.params, batch, latent_SBH, rates)
                    if k == self.K - 1:
                        info["lower"] = r.square().mean() * (0.5 * r.shape[-1])
                else:
                    lower = partial(self.lower_loss, nets, energy, f_k, batch.v, batch.lower_weight, latent_SBH)
                    gradient, info["lower"] = autodiff.grad(lower, phi.params, rates.get("scale"))
                phi = nets.phi_optimizer.step(phi, collectives.mean(gradient), rates["phi"])
        return phi, info

    def lower_loss(
        self, nets: Nets, energy: Energy, f: Any, v: Tensor, weight: Tensor, latent_SBH: Tensor, phi: Params
    ) -> tuple[Tensor, Tensor]:
        """Return the lower level's loss, and the mean divergence as it is logged; `energy` is a view at theta."""
        q = nets.posterior.at(phi)
        d_B = self.divergence(Head(energy, f), q, q.params(v), latent_SBH)
        return (weight * d_B).mean(), d_B.detach().mean()

    def diagnostics(self, nets: Nets, state: State, batch: Batch, noise: Noise) -> Info:
        """Return the mean divergence between q and the model's posterior, up to what a KL leaves out."""
        energy, latent_SBH = nets.energy.at(state.theta.params), noise["latent"][0].movedim(-2, -3)
        given = energy.features(batch.v), batch.v, batch.lower_weight, latent_SBH
        return {"divergence": self.lower_loss(nets, energy, *given, state.phi.params)[1]}


def features_at(step: int, energy: Energy, f: Any, batches: Sequence[Batch]) -> Any:
    """Return f if all steps share one batch, else the features of the step's own."""
    return f if len(batches) == 1 else energy.features(batches[step].v)
