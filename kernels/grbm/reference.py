"""The specification of a GRBM's energy and score with their first order, in plain torch ops. README.md derives it.

v [..., B, D], W [..., D, H], b and log_sigma [..., D], c [..., H], h [..., B, H]; leading axes are replicas.
"""

import torch
from torch import Tensor
from torch.nn.functional import softplus


def value(v: Tensor, W: Tensor, b: Tensor, c: Tensor, log_sigma: Tensor, h: Tensor | None) -> tuple[Tensor, ...]:
    """(E(v, h), -grad_v E(v, h)); without h (F(v), -grad_v F(v), the mean of h given v [..., B, H])."""
    z = v - b.unsqueeze(-2)
    away = z * precision(log_sigma)
    quadratic = 0.5 * (z * away).sum(-1)
    if h is None:
        x = v @ W + c.unsqueeze(-2)
        mean = torch.sigmoid(x)
        return quadratic - softplus(x).sum(-1), mean @ W.mT - away, mean
    pull = h @ W.mT
    return quadratic - (v * pull).sum(-1) - (h @ c.unsqueeze(-1)).squeeze(-1), pull - away


def first(
    g: Tensor,
    r: Tensor,
    kept: Tensor,
    v: Tensor,
    W: Tensor,
    b: Tensor,
    c: Tensor,
    log_sigma: Tensor,
    h: Tensor | None,
    wants_v: bool,
    wants_h: bool,
) -> tuple[Tensor, ...]:
    """Gradients of W, b, c, log_sigma, then of v and h where wanted, from cotangents g of the energy, r of the score.

    `kept` is the last output of `value`: the mean, or with h the score.
    """
    g = g.unsqueeze(-1)
    z = v - b.unsqueeze(-2)
    away = z * precision(log_sigma)
    gradients = []
    if h is None:
        x_bar = kept * (1 - kept) * (r @ W) - g * kept
        gradients += [v.mT @ x_bar + r.mT @ kept, x_bar.sum(-2)]
        if wants_v:
            gradients.append(g * away - r * precision(log_sigma) + x_bar @ W.mT)
    else:
        pulled = r - g * v
        gradients += [pulled.mT @ h, -(g * h).sum(-2)]
        if wants_v:
            gradients.append(-g * kept - r * precision(log_sigma))
        if wants_h:
            gradients.append(pulled @ W - g * c.unsqueeze(-2))
    W_bar, c_bar, *rest = gradients
    b_bar = (r * precision(log_sigma) - g * away).sum(-2)
    return W_bar, b_bar, c_bar, (away * (2 * r - g * z)).sum(-2), *rest


def precision(log_sigma: Tensor) -> Tensor:
    """1 / sigma^2, to broadcast over a batch."""
    return torch.exp(-2 * log_sigma).unsqueeze(-2)
