"""BiDSM and DSM on a GRBM as pure functions of `torch.func`: a form that `torch.compile` compiles whole.

The naive procedure itself cannot be compiled: it differentiates with `torch.autograd.grad(create_graph=True)` inside,
and a compiled graph has no second derivative from outside.
Shape tags: B batch, D visible units, H latent units.
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.func import grad

from eblvm.bench.contestants.grbm_settings import Settings
from eblvm.engine.types import Params


def quadratic(theta: Params, v_BD: Tensor) -> Tensor:
    return 0.5 * ((v_BD - theta["b"]) * torch.exp(-theta["log_sigma"])).square().sum(-1)


def energy(theta: Params, v_BD: Tensor, h_BH: Tensor) -> Tensor:
    return quadratic(theta, v_BD) - ((v_BD @ theta["W"] + theta["c"]) * h_BH).sum(-1)


def free_energy(theta: Params, v_BD: Tensor) -> Tensor:
    return quadratic(theta, v_BD) - F.softplus(v_BD @ theta["W"] + theta["c"]).sum(-1)


def logits_of(phi: Params, v_BD: Tensor) -> Tensor:
    return F.linear(v_BD, phi["weight"], phi["bias"])


def log_q(logits_BH: Tensor, h_BH: Tensor) -> Tensor:
    return (h_BH * logits_BH - F.softplus(logits_BH)).sum(-1)


def adam(
    p: Params, g: Params, m: Params, s: Params, t: Tensor, how: Settings, eps_root: float
) -> tuple[Params, Params, Params]:
    b1, b2 = how.betas
    m = {k: b1 * m[k] + (1 - b1) * x for k, x in g.items()}
    s = {k: b2 * s[k] + (1 - b2) * x * x for k, x in g.items()}
    rate, scale = how.lr / (1 - b1**t), 1 / (1 - b2**t)
    return {k: q - rate * m[k] / (torch.sqrt(scale * s[k] + eps_root) + 1e-8) for k, q in p.items()}, m, s


def gradient(
    how: Settings,
    theta: Params,
    phi: Params,
    m: Params,
    s: Params,
    count: Tensor,
    v_BD: Tensor,
    eps: Sequence[Tensor],
    logistic: Sequence[Tensor],
) -> tuple[Params, Params, Params, Params]:
    """theta's gradient, then phi and its moments after K real steps. eps: of every step, or one for all of them;
    logistic: of every step, or with an exact KL the upper level's."""

    def noisy(i: int) -> Tensor:
        return v_BD + how.sigma * eps[min(i, len(eps) - 1)]

    def lower_loss(phi: Params, theta: Params, i: int) -> Tensor:
        logits = logits_of(phi, noisy(i))
        h = torch.sigmoid(logits if how.exact else (logits + logistic[i]) / how.temperature)
        return (log_q(logits, h) + energy(theta, noisy(i), h)).mean()

    for k in range(how.K):
        phi, m, s = adam(phi, grad(lower_loss)(phi, theta, k), m, s, count + k + 1, how, 0.0)

    def upper_loss(theta: Params) -> Tensor:
        moved, m_n, s_n = phi, m, s
        for n in range(how.K, how.K + how.N):
            g = grad(lower_loss)(moved, theta, n)
            if how.sgd_rate is None:
                moved, m_n, s_n = adam(moved, g, m_n, s_n, count + n + 1, how, 1e-16)
            else:
                moved = {k: p - how.sgd_rate * g[k] for k, p in moved.items()}
        x_BD = noisy(how.K + how.N)
        h = torch.sigmoid((logits_of(moved, x_BD) + logistic[-1]) / how.temperature)
        score = grad(lambda x: (-energy(theta, x, h) - log_q(logits_of(moved, x), h)).sum())(x_BD)
        return dsm_loss(how, score, eps[-1])

    return grad(upper_loss)(theta), phi, m, s


def dsm_loss(how: Settings, score_BD: Tensor, eps_BD: Tensor) -> Tensor:
    return 0.5 * (score_BD + eps_BD / how.sigma).square().sum(-1).mean()


def dsm_gradient(how: Settings, theta: Params, v_BD: Tensor, eps_BD: Tensor) -> Params:
    def loss(theta: Params) -> Tensor:
        return dsm_loss(how, grad(lambda x: -free_energy(theta, x).sum())(v_BD + how.sigma * eps_BD), eps_BD)

    return grad(loss)(theta)
