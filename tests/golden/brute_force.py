"""BiSM's gradient on a GRBM as a double loop straight from the paper: energies and noise spelled out, plain autograd.

Nothing of the engine is used, nothing is shared between steps; only the noise is given from outside.
Shape tags: B batch, D visible, H latent, L samples of h.
"""

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
    """Eq. 10 on a minibatch: E_q [log q - log p~], by relaxed samples or by summing each unit's two states."""
    l_BH = logits(phi, v)
    if exact:
        q = torch.sigmoid(l_BH)
        entropy = -(q * logsigmoid(l_BH) + (1 - q) * logsigmoid(-l_BH)).sum(-1)
        return (-entropy + energy(theta, v, q)).mean()
    h = torch.sigmoid((l_BH + logistic) / tau)
    return (log_q(phi, v, h) + energy(theta, v, h)).mean()


def adam(phi: Tensors, grads: Tensors, m: Tensors, v: Tensors, count: int, lr: float, betas: tuple[float, float]):
    b1, b2 = betas
    m = {k: b1 * m[k] + (1 - b1) * grads[k] for k in phi}
    v = {k: b2 * v[k] + (1 - b2) * grads[k] ** 2 for k in phi}
    phi = {k: phi[k] - lr * (m[k] / (1 - b1**count)) / ((v[k] / (1 - b2**count) + 1e-16) ** 0.5 + 1e-8) for k in phi}
    return phi, m, v


def bism_gradient(
    theta: Tensors,
    phi: Tensors,
    moments: tuple[Tensors, Tensors, int],
    lower_batches: list[Tensor],
    logistics: list[Tensor],
    upper_loss,
    *,
    K: int,
    N: int,
    lr: float,
    unroll_lr: float,
    sgd: bool,
    exact: bool,
    tau: float,
    betas: tuple[float, float],
) -> tuple[Tensors, Tensors]:
    """(gradient for theta, phi after the K real steps). `lower_batches[i]`, `logistics[i]` are those of step i;
    `upper_loss(score_fn)` reduces v -> grad_v log [p~(v,h) / q(h|v; phi_N)] at the last batch."""
    theta = {k: p.detach().requires_grad_() for k, p in theta.items()}
    m, v2, count = moments

    for i in range(K):
        phi = {k: p.detach().requires_grad_() for k, p in phi.items()}
        value = lower(theta, phi, lower_batches[i], logistics[i], tau, exact)
        grads = dict(zip(phi, torch.autograd.grad(value, list(phi.values())), strict=True))
        count += 1
        phi, m, v2 = adam(phi, grads, m, v2, count, lr, betas)
        phi, m, v2 = ({k: p.detach() for k, p in t.items()} for t in (phi, m, v2))

    phi_n = {k: p.clone().requires_grad_() for k, p in phi.items()}
    for n in range(N):
        value = lower(theta, phi_n, lower_batches[K + n], logistics[K + n], tau, exact)
        grads = dict(zip(phi_n, torch.autograd.grad(value, list(phi_n.values()), create_graph=True), strict=True))
        if sgd:
            phi_n = {k: p - unroll_lr * grads[k] for k, p in phi_n.items()}
        else:
            count += 1
            phi_n, m, v2 = adam(phi_n, grads, m, v2, count, lr, betas)

    v = lower_batches[-1]
    h = torch.sigmoid((logits(phi_n, v) + logistics[K + N]) / tau)

    def score_fn(x: Tensor) -> Tensor:
        return torch.autograd.grad((-energy(theta, x, h) - log_q(phi_n, x, h)).sum(), x, create_graph=True)[0]

    gradient = torch.autograd.grad(upper_loss(score_fn, v), list(theta.values()), materialize_grads=True)
    return dict(zip(theta, gradient, strict=True)), phi
