"""Denoising score matching on a GRBM with its exact free energy (Vincent 2011; BiSM section 5.1).

Shape tags: B batch, D visible units, H latent units.
"""

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Draw = Callable[[], Tensor]  # eps_BD, standard normal


class Grbm(nn.Module):
    """E(v, h) = 1/2 sum_d (v_d - b_d)^2 / sigma_d^2 - c.h - v W h, with sigma = exp(log_sigma)."""

    def __init__(self, visible: int, latent: int):
        super().__init__()
        bound = 1 / math.sqrt(latent)
        self.W = nn.Parameter(torch.empty(visible, latent).uniform_(-bound, bound))
        self.b = nn.Parameter(torch.empty(visible).uniform_(-bound, bound))
        self.c = nn.Parameter(torch.empty(latent).uniform_(-bound, bound))
        self.log_sigma = nn.Parameter(torch.zeros(visible))

    def quadratic(self, v_BD: Tensor) -> Tensor:
        return 0.5 * ((v_BD - self.b) * torch.exp(-self.log_sigma)).square().sum(-1)

    def energy(self, v_BD: Tensor, h_BH: Tensor) -> Tensor:
        return self.quadratic(v_BD) - (F.linear(v_BD, self.W.t(), self.c) * h_BH).sum(-1)

    def free_energy(self, v_BD: Tensor) -> Tensor:
        return self.quadratic(v_BD) - F.softplus(F.linear(v_BD, self.W.t(), self.c)).sum(-1)


class Dsm:
    """Each step: grad_theta of mean_B 1/2 |grad_v -F(v + sigma eps) + eps / sigma|^2, then Adam on theta."""

    def __init__(self, visible: int, latent: int, *, sigma: float, lr: float, betas: tuple[float, float]):
        self.sigma = sigma
        self.model = Grbm(visible, latent)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr, betas, fused=True)

    def gradient(self, v_BD: Tensor, draw: Draw) -> list[Tensor]:
        eps = draw()
        x = (v_BD + self.sigma * eps).requires_grad_()
        (score,) = torch.autograd.grad(-self.model.free_energy(x).sum(), x, create_graph=True)
        loss = 0.5 * (score + eps / self.sigma).square().sum(-1).mean()
        return list(torch.autograd.grad(loss, list(self.model.parameters())))

    def step(self, v_BD: Tensor, draw: Draw) -> None:
        for p, g in zip(self.model.parameters(), self.gradient(v_BD, draw), strict=True):
            p.grad = g
        self.optimizer.step()

    def draw_fresh(self, v_BD: Tensor) -> Draw:
        return lambda: torch.randn_like(v_BD)
