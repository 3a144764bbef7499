"""The specification, in plain torch ops. README.md has the formulas.

Shape tags: S samples of h, B batch, H latent units, E width of the head. `out` [B, 2H] is (mean, log std) of q; it may
be of 16 bits, the rest is not.
"""

import torch
from torch import Tensor


def sample(out_B2H: Tensor, eps_SBH: Tensor) -> Tensor:
    """h = mean + std eps, [S B, H]."""
    mean_BH, log_std_BH = out_B2H.to(eps_SBH.dtype).chunk(2, -1)
    return torch.addcmul(mean_BH, torch.exp(log_std_BH), eps_SBH).flatten(0, 1)


def slope(y_E: Tensor) -> Tensor:
    """2 (elu elu')(y), the derivative of elu^2."""
    elu_E = torch.nn.functional.elu(y_E)
    return 2 * elu_E * (elu_E.clamp(max=0) + 1)


def residual(slope_SBH: Tensor, out_B2H: Tensor, eps_SBH: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """r = slope - eps / std, and r_bar = weight r / (S B), for a weight [B] or []; both [S, B, H]."""
    S, B, H = eps_SBH.shape
    std_BH = torch.exp(out_B2H.to(eps_SBH.dtype)[:, H:])
    r_SBH = torch.addcdiv(slope_SBH.view(S, B, H), eps_SBH, std_BH, value=-1)
    return r_SBH, r_SBH * (weight / (S * B)).view(-1, 1)


def curved(t_E: Tensor, y_E: Tensor) -> Tensor:
    """2 t (elu'^2 + elu elu'')(y) = 2 t (n + 1)(2n + 1), n = min(elu(y), 0)."""
    below_E = torch.nn.functional.elu(y_E).clamp(max=0)
    slope_E = below_E + 1
    return 2 * t_E * torch.addcmul(slope_E, slope_E, below_E, value=2)


def outputs_bar(h_bar_SBH: Tensor, r_bar_SBH: Tensor, out_B2H: Tensor, eps_SBH: Tensor, scale: Tensor | None) -> Tensor:
    """(h_bar, eps (std h_bar + r_bar / std)), summed over samples, times `scale`: the cotangent of out, in its type."""
    S, B, H = eps_SBH.shape
    std_BH = torch.exp(out_B2H.to(eps_SBH.dtype)[:, H:])
    h_bar_SBH = h_bar_SBH.view(S, B, H)
    log_std_bar_SBH = torch.addcmul(r_bar_SBH / std_BH, h_bar_SBH, std_BH) * eps_SBH
    bar_B2H = torch.cat([h_bar_SBH, log_std_bar_SBH], -1).sum(0)
    return (bar_B2H if scale is None else bar_B2H * scale).to(out_B2H.dtype)
