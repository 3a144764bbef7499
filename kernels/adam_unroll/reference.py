"""The specification of the differentiable Adam step (Kingma & Ba, with eps_root under the root), in plain torch ops.

    m' = b1 m + (1-b1) g;  v' = b2 v + (1-b2) g^2;  p' = p - lr/c1 m' / (sqrt(v'/c2 + eps_root) + eps);  ci = 1 - bi^t

t is the number of this step, from 1; t and lr are tensors whose axes are the leading axes of p (none: one for all).
"""

from typing import NamedTuple

import torch
from torch import Tensor


class Rule(NamedTuple):
    """Adam's constants."""

    b1: float = 0.9
    b2: float = 0.95
    eps: float = 1e-8
    eps_root: float = 1e-16


def step(
    p: Tensor, g: Tensor, m: Tensor, v: Tensor, t: Tensor, lr: Tensor, rule: Rule
) -> tuple[Tensor, Tensor, Tensor]:
    """(p', m', v')."""
    b1, b2, eps, eps_root = rule
    m = b1 * m + (1 - b1) * g
    v = b2 * v + (1 - b2) * g.square()
    rate, c2 = corrections(t, lr, p.dim(), rule)
    return p - rate * m / (torch.sqrt(v / c2 + eps_root) + eps), m, v


def step_(p: Tensor, g: Tensor, m: Tensor, v: Tensor, t: Tensor, lr: Tensor, rule: Rule) -> None:
    """(p', m', v') in the place of (p, m, v)."""
    for place, x in zip((p, m, v), step(p, g, m, v, t, lr, rule), strict=True):
        place.copy_(x)


def clipped(g: list[Tensor], replicas: int, clip_norm: float | None) -> tuple[list[Tensor], Tensor]:
    """(g scaled down to a norm of at most `clip_norm`, their norm before), each replica by itself."""
    norms = [torch.linalg.vector_norm(x.reshape(*x.shape[:replicas], -1), dim=-1) for x in g]
    norm = torch.linalg.vector_norm(torch.stack(norms, -1), dim=-1)
    if clip_norm is None:
        return g, norm
    scale = clip_norm / norm.clamp(min=clip_norm)
    return [x * scale.view((*scale.shape, *[1] * (x.dim() - replicas))) for x in g], norm


def decayed(p: list[Tensor], g: list[Tensor], weight_decay: float) -> list[Tensor]:
    """The gradient with that of weight_decay/2 |p|^2."""
    if not weight_decay:
        return g
    return [torch.add(g_i, p_i, alpha=weight_decay) for p_i, g_i in zip(p, g, strict=True)]


def reverse(
    p_bar: Tensor, m_bar: Tensor, v_bar: Tensor, g: Tensor, m: Tensor, v: Tensor, t: Tensor, lr: Tensor, rule: Rule
) -> tuple[Tensor, ...]:
    """The cotangents of (g, m, v) from those of (p', m', v'), in closed form; that of p is p_bar."""
    b1, b2, eps, eps_root = rule
    m = b1 * m + (1 - b1) * g
    v = b2 * v + (1 - b2) * g.square()
    rate, c2 = corrections(t, lr, g.dim(), rule)
    root = torch.sqrt(v / c2 + eps_root)
    pull = rate * p_bar / (root + eps)
    m_bar = m_bar - pull
    v_bar = v_bar + pull * m / (root + eps) / (2 * c2 * root)
    return (1 - b1) * m_bar + 2 * (1 - b2) * g * v_bar, b1 * m_bar, b2 * v_bar


def corrections(t: Tensor, lr: Tensor, dim: int, rule: Rule) -> tuple[Tensor, Tensor]:
    """lr / (1 - b1^t) and 1 - b2^t, shaped to broadcast over p's trailing axes."""
    shape = (*t.shape, *[1] * (dim - t.dim()))
    return (lr / (1 - rule.b1**t)).reshape(shape), (1 - rule.b2**t).reshape(shape)
