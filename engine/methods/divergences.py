"""Divergences D(q(h|v) || p(h|v)) that the lower level minimises, up to constants in phi (BiSM Eq. 10).

Each is `divergence(head, posterior, p, noise) -> d[B]`: `head(h)` is the energy of h[..., B, H] at the batch's fixed
features, `p` the posterior's parameters at the batch, `noise` [L, B, H] what `posterior.rsample` takes.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from eblvm.engine.autodiff import collectives
from eblvm.engine.autodiff.derivatives import grad

Head = Callable[[Tensor], Tensor]
Divergence = Callable[[Head, Any, Any, Tensor], Tensor]


def kl(head: Head, posterior: Any, p: Any, noise: Tensor) -> Tensor:
    """E_q [log q(h|v) + E(v, h)] over L reparameterised samples."""
    h = posterior.rsample(p, noise)
    return (posterior.log_prob(p, h) + head(h)).mean(0)


def kl_exact(head: Head, posterior: Any, p: Any, noise: Tensor) -> Tensor:
    """The same in closed form for a Bernoulli q and an energy linear in h: -entropy(q) + E(v, mean of q)."""
    mean = posterior.mean(p)
    return posterior.log_prob(p, mean) + head(mean)


def fisher(head: Head, posterior: Any, p: Any, noise: Tensor) -> Tensor:
    """E_q 1/2 |grad_h log q(h|v) + grad_h E(v, h)|^2 over L reparameterised samples, for a continuous h."""
    h = posterior.rsample(p, noise)
    difference, _ = grad(lambda x: ((posterior.log_prob(p, x) + head(x)).sum(), ()), h)
    return 0.5 * difference.square().sum(-1).mean(0)


BY_NAME: dict[str, Divergence] = {"kl": kl, "kl-exact": kl_exact, "fisher": fisher}


def linear_step_size(v_BD: Tensor, iterations: int = 16) -> Tensor:
    """6 / lambda_max of M = (v v^T + 1 1^T) / B: three quarters of the largest stable step on a linear posterior.

    A step of size a on (A, a) moves the logits by -a M delta, and the exact KL's curvature in a logit is at most 1/4.
    Of the steps tried on Frey face (docs/results.md) those near the limit gave the best models.
    """

    def norm(x: Tensor) -> Tensor:  # over all ranks' samples, as are M's products
        return collectives.mean(x.square().sum()).sqrt()

    x = torch.ones_like(v_BD[:, :1])
    for _ in range(iterations):
        x = x / norm(x)
        pulled, total = collectives.mean((v_BD.T @ x, x.sum()))
        x = (v_BD @ pulled + total) / v_BD.shape[0]
    return 6 / norm(x)
