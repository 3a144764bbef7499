"""The specification of the pointwise part of the lower step, in plain torch ops.

A Bernoulli posterior with logits l, an energy that is linear in h with coefficient x, and either a relaxed sample
h = sigmoid((l + noise) / tau) or, with `noise=None`, the mean h = sigmoid(l) (the KL in closed form). Summed over the
last axis:

    kl = sum_H h (l - x) - softplus(l)

`first` and `second` are its derivatives in closed form; README.md derives them. All arguments [..., B, H], g [..., B].
"""

import torch
from torch import Tensor
from torch.nn.functional import softplus


def value(logits: Tensor, x: Tensor, noise: Tensor | None, tau: float) -> Tensor:
    """kl [..., B], by autograd differentiable in every argument."""
    h = torch.sigmoid(logits) if noise is None else torch.sigmoid((logits + noise) / tau)
    return (h * (logits - x) - softplus(logits)).sum(-1)


def first(g: Tensor, logits: Tensor, x: Tensor, noise: Tensor | None, tau: float) -> tuple[Tensor, Tensor]:
    """g dkl/dl = g delta and g dkl/dx = -g h, both [..., B, H]."""
    h, _, delta, _ = coefficients(logits, x, noise, tau)
    g = g.unsqueeze(-1)
    return g * delta, -g * h


def second(
    g: Tensor, u: Tensor, w: Tensor, logits: Tensor, x: Tensor, noise: Tensor | None, tau: float
) -> tuple[Tensor, Tensor, Tensor]:
    """The transposed Jacobian of `first` on the cotangents (u, w): for g [..., B], logits and x."""
    h, slope, delta, curvature = coefficients(logits, x, noise, tau)
    g = g.unsqueeze(-1)
    return (u * delta - w * h).sum(-1), g * (u * curvature - w * slope), -g * u * slope


def coefficients(logits: Tensor, x: Tensor, noise: Tensor | None, tau: float) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """h, dh/dl, delta = dkl/dl and d delta/dl; d delta/dx = -dh/dl."""
    s = torch.sigmoid(logits)
    s1 = s * (1 - s)
    gap = logits - x
    if noise is None:
        return s, s1, gap * s1, s1 + gap * s1 * (1 - 2 * s)
    h = torch.sigmoid((logits + noise) / tau)
    h1 = h * (1 - h) / tau
    return h, h1, h + gap * h1 - s, 2 * h1 + gap * h1 * (1 - 2 * h) / tau - s1
