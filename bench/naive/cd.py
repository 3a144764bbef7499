"""Contrastive divergence on a GRBM (Hinton 2002): theta's gradient at the data minus that after k Gibbs sweeps.

Shape tags: B batch, D visible units, H latent units.
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from eblvm.bench.naive.dsm import Grbm


class Cd:
    def __init__(self, visible: int, latent: int, *, sweeps: int, lr: float, betas: tuple[float, float]):
        self.sweeps = sweeps
        self.model = Grbm(visible, latent)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr, betas, fused=True)

    @torch.no_grad()
    def chain(self, v_BD: Tensor, noise: Sequence[tuple[Tensor, Tensor]]) -> Tensor:
        """h ~ p(h|v), then v ~ p(v|h) = N(b + sigma^2 W h, sigma^2), for every pair (uniform_BH, normal_BD)."""
        W, b, c, log_sigma = self.model.parameters()
        for uniform_BH, normal_BD in noise:
            h = (uniform_BH < torch.sigmoid(F.linear(v_BD, W.t(), c))).to(v_BD.dtype)
            v_BD = b + torch.exp(2 * log_sigma) * F.linear(h, W) + torch.exp(log_sigma) * normal_BD
        return v_BD

    def gradient(self, v_BD: Tensor, noise: Sequence[tuple[Tensor, Tensor]]) -> list[Tensor]:
        sampled = self.chain(v_BD, noise)
        loss = self.model.free_energy(v_BD).mean() - self.model.free_energy(sampled).mean()
        return list(torch.autograd.grad(loss, list(self.model.parameters())))

    def step(self, v_BD: Tensor) -> None:
        uniform = v_BD.new_empty(self.sweeps, len(v_BD), len(self.model.c)).uniform_()
        noise = [(u, torch.randn_like(v_BD)) for u in uniform]
        for p, g in zip(self.model.parameters(), self.gradient(v_BD, noise), strict=True):
            p.grad = g
        self.optimizer.step()
