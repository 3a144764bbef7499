"""Divergences D(q(h|v) || p(h|v)) that the lower level minimises, up to constants in phi (BiSM Eq. 10).

Each is `divergence(head, posterior, p, noise) -> d[B]`: `head` is the energy at the batch's fixed features, `p` the
posterior's parameters at the batch, `noise` [S, B, H] what `posterior.rsample` takes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from eblvm.engine import autodiff
from eblvm.engine.options import Options, declared, option

if TYPE_CHECKING:
    from torch import Tensor

    from eblvm.engine.methods.lower_level import Head
    from eblvm.engine.nets import Posterior


@dataclass(frozen=True)
class Divergence(Options):
    group = "method"
    reads_samples: ClassVar[bool] = True  # of h, drawn from q
    latent_samples: ClassVar[int] = 1  # of h per sample of v

    def __call__(self, head: Head, posterior: Posterior, p: Any, noise: Tensor) -> Tensor:
        raise NotImplementedError


@dataclass(frozen=True)
class Kl(Divergence):
    """E_q [log q(h|v) + E(v, h)] over S reparameterised samples."""

    kind = "kl"
    latent_samples: int = option(1, "samples of h in the divergence", low=1)  # type: ignore[misc]

    def __call__(self, head: Head, posterior: Posterior, p: Any, noise: Tensor) -> Tensor:
        h = posterior.rsample(p, noise)
        return (posterior.log_prob(p, h) + head(h)).mean(0)


@dataclass(frozen=True)
class KlExact(Divergence):
    """The same in closed form, -entropy(q) + E_q E(v, h): the gradient has no noise from h.

    For a Bernoulli q and an energy linear in h, and for a Gaussian q and the deep head."""

    kind = "kl-exact"
    needs = ("exact_kl",)
    reads_samples = False

    def __call__(self, head: Head, posterior: Posterior, p: Any, noise: Tensor) -> Tensor:
        if hasattr(posterior, "negative_entropy"):
            return posterior.negative_entropy(p) + head.expected(p)
        mean = posterior.mean(p)
        return posterior.log_prob(p, mean) + head(mean)


@dataclass(frozen=True)
class Iwae(Divergence):
    """-E_q log 1/k sum_i p~(v, h_i) / q(h_i|v) over k reparameterised samples (Burda et al. 2016).

    The KL where k = 1; tighter with more, and then at its least for a q wider than the KL's."""

    kind = "iwae"
    latent_samples: int = option(5, "k, samples of h in the bound", low=1)  # type: ignore[misc]

    def __call__(self, head: Head, posterior: Posterior, p: Any, noise: Tensor) -> Tensor:
        h = posterior.rsample(p, noise)
        return math.log(len(noise)) - (-head(h) - posterior.log_prob(p, h)).logsumexp(0)


@dataclass(frozen=True)
class Fisher(Divergence):
    """E_q 1/2 |grad_h log q(h|v) + grad_h E(v, h)|^2 over S reparameterised samples, for a continuous h."""

    kind = "fisher"
    needs = ("continuous_h",)
    latent_samples: int = option(1, "samples of h in the divergence", low=1)  # type: ignore[misc]

    def __call__(self, head: Head, posterior: Posterior, p: Any, noise: Tensor) -> Tensor:
        h = posterior.rsample(p, noise)
        difference, _ = autodiff.grad(lambda x: ((posterior.log_prob(p, x) + head(x)).sum(), ()), h)
        return 0.5 * difference.square().sum(-1).mean(0)


KINDS = declared(Divergence, (KlExact, Fisher, Kl, Iwae))
