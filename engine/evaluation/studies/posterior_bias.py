"""The bias of VaES and VaGES against the divergence between posteriors (VaGES theorems 1-4, appendix F.4), exactly.

v and theta are fixed, q starts as the model's own posterior and is moved away by noise of growing size. Expectations
under q and p are closed forms in both models, so there is no sampling noise in the curves:

    VaES   |E_q[grad_v log p~] - E_p[grad_v log p~]|
    VaGES  the same of E[d grad_v log p~/dtheta] + cov(grad_v log p~, grad_theta log p~), by Frobenius norm.

Shape tags: D visible, H latent units.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from eblvm.kernels import philox
from eblvm.kernels.philox import Key, Purpose, purpose


class Point(NamedTuple):
    divergence: float
    vaes: float
    vages: float


def grbm_bias(v_D: Tensor, latent: int, levels: Sequence[float], seed: int = 0) -> list[Point]:
    """KL(q || p) and the biases on a GRBM of random theta, a point for every size of the noise on q's logits' layer."""
    W_DH, A_DH, a_H, x_H = _random_layers(v_D, latent, seed)
    p_H = torch.sigmoid(x_H)
    points = []
    for level in levels:
        l_H = x_H + level * (v_D @ A_DH + a_H)
        q_H = torch.sigmoid(l_H)
        kl = (q_H * (l_H - x_H) + torch.log1p(-q_H) - torch.log1p(-p_H)).sum()
        mean, variance = q_H - p_H, q_H * (1 - q_H) - p_H * (1 - p_H)
        # d s_d / d W_d'h = [d = d'] E h_h + v_d' W_dh var h_h, and d s_d / d c_h = W_dh var h_h.
        squares_H, along_H = W_DH.square().sum(0), v_D @ W_DH
        jacobian = len(v_D) * mean.square() + 2 * mean * variance * along_H
        jacobian = jacobian + (v_D.square().sum() + 1) * squares_H * variance.square()
        points.append(Point(float(kl), float((W_DH @ mean).norm()), math.sqrt(float(jacobian.sum()))))
    return points


def gaussian_bias(v_D: Tensor, latent: int, levels: Sequence[float], seed: int = 0) -> list[Point]:
    """The Fisher divergence of q and p and the biases in log p~(v, h) = -|h|^2/2 - |v - W h|^2/2, theta = W.

    W has orthonormal columns, so that the posterior N(W^T v / 2, 1/2) has independent units, as q has."""
    W_DH, A_DH, a_H, _ = _random_layers(v_D, latent, seed)
    W_DH = torch.linalg.qr(W_DH).Q
    mu_H, s_H = v_D @ W_DH / 2, torch.full((latent,), 0.5, dtype=v_D.dtype)
    points = []
    for level in levels:
        m_H, t_H = mu_H + level * (v_D @ A_DH), s_H * torch.exp(level * a_H)
        # grad log q - grad log p at h = m + sqrt(t) z is (m - mu)/s + z sqrt(t) (1/s - 1/t).
        fisher = 0.5 * (((m_H - mu_H) / s_H).square() + t_H * (1 / s_H - 1 / t_H).square()).sum()
        jacobian = 0.0
        away_q, away_p = v_D - W_DH @ m_H, v_D - W_DH @ mu_H
        spread_q, spread_p = (W_DH * t_H) @ W_DH.T, (W_DH * s_H) @ W_DH.T
        one = torch.eye(len(v_D), dtype=v_D.dtype)
        for h in range(latent):
            # d s_d / d W_d'h = [d = d'] E h + (v - W E h)_d' W_dh var h - E h (W var W^T)_dd'.
            at_q = m_H[h] * (one - spread_q) + t_H[h] * torch.outer(W_DH[:, h], away_q)
            at_p = mu_H[h] * (one - spread_p) + s_H[h] * torch.outer(W_DH[:, h], away_p)
            jacobian += float((at_q - at_p).square().sum())
        points.append(Point(float(fisher), float((W_DH @ (m_H - mu_H)).norm()), math.sqrt(jacobian)))
    return points


def _random_layers(v_D: Tensor, latent: int, seed: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """W uniform in +-1/sqrt(H), the noise (A, a) on q's layer, and x = c + vW with c as W."""
    D, bound = len(v_D), 1 / math.sqrt(latent)

    def drawn(substep: int, draw: object, *shape: int) -> Tensor:
        return draw(Key(seed, 0), purpose(Purpose.EVAL, substep), shape[0], shape[1:], dtype=v_D.dtype)  # type: ignore[operator]

    W_DH, c_H = (bound * (2 * drawn(i, philox.uniform, *s) - 1) for i, s in ((0, (D, latent)), (1, (latent,))))
    A_DH, a_H = drawn(2, philox.normal, D, latent), drawn(3, philox.normal, latent)
    return W_DH, A_DH, a_H, v_D @ W_DH + c_H
