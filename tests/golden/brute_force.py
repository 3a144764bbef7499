"""BiSM's gradient as a double loop straight from the paper: energies and noise spelled out, plain autograd.

Nothing of the engine is used, nothing is shared between steps; only the noise is given from outside. `double_loop`
is the algorithm for any model, `bism_gradient` that of a GRBM.
Shape tags: B batch, D visible, H latent, L samples of h.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

Tensors = dict[str, Tensor]


def energy(theta: Tensors, v: Tensor, h: Tensor) -> Tensor:
    quadratic = 0.5 * ((v - theta["b"]) ** 2 / torch.exp(theta["log_sigma"]) ** 2).sum(-1)
    return quadratic - h @ theta["c"] - ((v @ theta["W"]) * h).sum(-1)


def logits(phi: Tensors, v: Tensor) -> Tensor:
    return v @ phi["net.0.weight"].T + phi["net.0.bias"]


def log_q(phi: Tensors, v: Tensor, h: Tensor) -> Tensor:
    l_BH = logits(phi, v)
    return (h * logsigmoid(l_BH) + (1 - h) * logsigmoid(-l_BH)).sum(-1)


def lower(theta: Tensors, phi: Tensors, v: Tensor, logistic: Tensor, tau: float, exact: bool) -> Tensor:
    """Eq. 10 by sample [B]: E_q [log q - log p~], by relaxed samples or by summing each unit's two states."""
    l_BH = logits(phi, v)
    if exact:
        q = torch.sigmoid(l_BH)
        entropy = -(q * logsigmoid(l_BH) + (1 - q) * logsigmoid(-l_BH)).sum(-1)
        return -entropy + energy(theta, v, q)
    h = torch.sigmoid((l_BH + logistic) / tau)
    return log_q(phi, v, h) + energy(theta, v, h)


def adam(phi: Tensors, grads: Tensors, m: Tensors, v: Tensors, count: int, lr: float, betas: tuple[float, float]):
    b1, b2 = betas
    m = {k: b1 * m[k] + (1 - b1) * grads[k] for k in phi}
    v = {k: b2 * v[k] + (1 - b2) * grads[k] ** 2 for k in phi}
    phi = {k: phi[k] - lr * (m[k] / (1 - b1**count)) / ((v[k] / (1 - b2**count) + 1e-16) ** 0.5 + 1e-8) for k in phi}
    return phi, m, v


class Model(NamedTuple):
    """What the double loop needs to know of a model."""

    energy: Callable[[Tensors, Tensor, Tensor], Tensor]  # (theta, v, h) -> [B]
    log_q: Callable[[Tensors, Tensor, Tensor], Tensor]  # (phi, v, h) -> [B]
    sample: Callable[[Tensors, Tensor, Tensor], Tensor]  # (phi, v, noise) -> h
    lower: Callable[[Tensors, Tensors, Tensor, Tensor], Tensor]  # (theta, phi, v, noise) -> [B]


def double_loop(
    model: Model,
    theta: Tensors,
    phi: Tensors,
    moments: tuple[Tensors, Tensors, int],
    batches: list[Tensor],
    noises: list[Tensor],
    upper_loss,
    weight: Tensor | float = 1.0,
    *,
    K: int,
    N: int,
    lr: float,
    unroll_lr: float,
    sgd: bool,
    betas: tuple[float, float],
) -> tuple[Tensors, Tensors]:
    """(gradient for theta, phi after the K real steps). `batches[i]`, `noises[i]` are those of step i; `weight` of each
    sample in the lower loss; `upper_loss(score_fn, v)` reduces v -> grad_v log [p~(v,h) / q(h|v; phi_N)]."""
    theta = {k: p.detach().requires_grad_() for k, p in theta.items()}
    m, v2, count = moments

    for i in range(K):
        phi = {k: p.detach().requires_grad_() for k, p in phi.items()}
        value = (weight * model.lower(theta, phi, batches[i], noises[i])).mean()
        grads = dict(zip(phi, torch.autograd.grad(value, list(phi.values())), strict=True))
        count += 1
        phi, m, v2 = adam(phi, grads, m, v2, count, lr, betas)
        phi, m, v2 = ({k: p.detach() for k, p in t.items()} for t in (phi, m, v2))

    phi_n = {k: p.clone().requires_grad_() for k, p in phi.items()}
    for n in range(N):
        value = (weight * model.lower(theta, phi_n, batches[K + n], noises[K + n])).mean()
        grads = dict(zip(phi_n, torch.autograd.grad(value, list(phi_n.values()), create_graph=True), strict=True))
        if sgd:
            phi_n = {k: p - unroll_lr * grads[k] for k, p in phi_n.items()}
        else:
            count += 1
            phi_n, m, v2 = adam(phi_n, grads, m, v2, count, lr, betas)

    v = batches[-1]
    h = model.sample(phi_n, v, noises[K + N])

    def score_fn(x: Tensor) -> Tensor:
        log_ratio = -model.energy(theta, x, h) - model.log_q(phi_n, x, h)
        return torch.autograd.grad(log_ratio.sum(), x, create_graph=True)[0]

    gradient = torch.autograd.grad(upper_loss(score_fn, v), list(theta.values()), materialize_grads=True)
    return dict(zip(theta, gradient, strict=True)), phi


def bism_gradient(
    theta: Tensors,
    phi: Tensors,
    moments: tuple[Tensors, Tensors, int],
    lower_batches: list[Tensor],
    logistics: list[Tensor],
    upper_loss,
    weight: Tensor | float = 1.0,
    *,
    exact: bool,
    tau: float,
    **how,
) -> tuple[Tensors, Tensors]:
    """`double_loop` for a GRBM with a linear Bernoulli posterior."""
    grbm = Model(
        energy,
        log_q,
        sample=lambda phi, v, logistic: torch.sigmoid((logits(phi, v) + logistic) / tau),
        lower=lambda theta, phi, v, logistic: lower(theta, phi, v, logistic, tau, exact),
    )
    return double_loop(grbm, theta, phi, moments, lower_batches, logistics, upper_loss, weight, **how)
