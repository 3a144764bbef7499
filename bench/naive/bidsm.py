"""Bi-level denoising score matching on a GRBM (BiSM, Algorithm 1), with the loops as the paper writes them.

The noise is redrawn and the energy recomputed in every real and every unrolled lower step, and the unrolled Adam keeps
its whole graph, as in the published runs. Real steps are in place, by `torch.optim.Adam`.
Shape tags: B batch, D visible units, H latent units.
"""

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from eblvm.bench.naive.dsm import Grbm

Draw = Callable[[], tuple[Tensor, Tensor]]  # (eps_BD, standard normal; logistic_BH), in the order of the steps


class BiDsm:
    """theta by Adam through N unrolled steps (Eq. 14, 15), phi = (A, a) of q = Bern(sigmoid(v A^T + a)) by K real ones.

    The unrolled steps are Adam's, continuing phi's real moments, or those of SGD if `sgd_rate` is given. The lower
    level's KL is sampled, as published, or `exact`.
    """

    def __init__(
        self,
        visible: int,
        latent: int,
        *,
        N: int,
        K: int,
        sigma: float,
        lr: float,
        betas: tuple[float, float],
        temperature: float,
        sgd_rate: float | None = None,
        exact: bool = False,
    ):
        self.N, self.K, self.sigma, self.lr, self.betas = N, K, sigma, lr, betas
        self.temperature, self.sgd_rate, self.exact = temperature, sgd_rate, exact
        self.model = Grbm(visible, latent)
        self.posterior = nn.Linear(visible, latent)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr, betas, fused=True)
        self.lower_optimizer = torch.optim.Adam(self.posterior.parameters(), lr, betas, fused=True)

    def sample(self, logits_BH: Tensor, logistic_BH: Tensor) -> Tensor:
        """Gumbel-Softmax of a Bernoulli: h = sigmoid((l + logistic) / temperature)."""
        return torch.sigmoid((logits_BH + logistic_BH) / self.temperature)

    def log_q(self, logits_BH: Tensor, h_BH: Tensor) -> Tensor:
        return (h_BH * logits_BH - F.softplus(logits_BH)).sum(-1)

    def lower_loss(self, phi: Sequence[Tensor], v_BD: Tensor, logistic_BH: Tensor) -> Tensor:
        """KL(q || p) up to a constant (Eq. 10): mean_B [log q(h|v) + E(v, h)] at a sample of h, or, as both are linear
        in h, at its mean."""
        logits = F.linear(v_BD, phi[0], phi[1])
        h = torch.sigmoid(logits) if self.exact else self.sample(logits, logistic_BH)
        return (self.log_q(logits, h) + self.model.energy(v_BD, h)).mean()

    def lower_steps(self, v_BD: Tensor, draw: Draw) -> None:
        """K real steps on phi (Eq. 12)."""
        phi = list(self.posterior.parameters())
        for _ in range(self.K):
            eps, logistic = draw()
            loss = self.lower_loss(phi, v_BD + self.sigma * eps, logistic)
            for p, g in zip(phi, torch.autograd.grad(loss, phi), strict=True):
                p.grad = g
            self.lower_optimizer.step()

    def unrolled_steps(self, v_BD: Tensor, draw: Draw) -> list[Tensor]:
        """phi_N(theta) after N differentiable steps from phi (Eq. 13)."""
        phi: list[Tensor] = list(self.posterior.parameters())
        states = [self.lower_optimizer.state[p] for p in phi]
        m = [s.get("exp_avg", torch.zeros_like(p)) for p, s in zip(phi, states, strict=True)]
        s = [s.get("exp_avg_sq", torch.zeros_like(p)) for p, s in zip(phi, states, strict=True)]
        count = int(states[0].get("step", 0))
        b1, b2 = self.betas
        for n in range(self.N):
            eps, logistic = draw()
            loss = self.lower_loss(phi, v_BD + self.sigma * eps, logistic)
            grads = torch.autograd.grad(loss, phi, create_graph=True)
            if self.sgd_rate is not None:
                phi = [torch.sub(p, g, alpha=self.sgd_rate) for p, g in zip(phi, grads, strict=True)]
                continue
            t = count + n + 1
            m = [torch.lerp(a, g, 1 - b1) for a, g in zip(m, grads, strict=True)]
            s = [torch.addcmul(b2 * a, g, g, value=1 - b2) for a, g in zip(s, grads, strict=True)]
            # 1e-16 under the root: at a zero second moment the derivative of sqrt is infinite.
            roots = [torch.sqrt(a / (1 - b2**t) + 1e-16) + 1e-8 for a in s]
            rate = self.lr / (1 - b1**t)
            phi = [torch.addcdiv(p, a, r, value=-rate) for p, a, r in zip(phi, m, roots, strict=True)]
        return phi

    def gradient(self, v_BD: Tensor, draw: Draw) -> list[Tensor]:
        """K real steps, N unrolled ones, then the gradient of the upper loss for theta = (W, b, c, log_sigma)."""
        self.lower_steps(v_BD, draw)
        phi = self.unrolled_steps(v_BD, draw)
        eps, logistic = draw()
        x = (v_BD + self.sigma * eps).requires_grad_()
        h = self.sample(F.linear(x.detach(), phi[0], phi[1]), logistic)  # a constant for grad_v
        log_ratio = -self.model.energy(x, h) - self.log_q(F.linear(x, phi[0], phi[1]), h)
        (score,) = torch.autograd.grad(log_ratio.sum(), x, create_graph=True)
        loss = 0.5 * (score + eps / self.sigma).square().sum(-1).mean()
        return list(torch.autograd.grad(loss, list(self.model.parameters()), materialize_grads=True))

    def step(self, v_BD: Tensor, draw: Draw) -> None:
        for p, g in zip(self.model.parameters(), self.gradient(v_BD, draw), strict=True):
            p.grad = g
        self.optimizer.step()

    def draw_fresh(self, v_BD: Tensor) -> Draw:
        return lambda: (torch.randn_like(v_BD), self.draw_logistic(v_BD))

    def draw_logistic(self, v_BD: Tensor) -> Tensor:
        return v_BD.new_empty(v_BD.shape[0], self.posterior.out_features).uniform_().logit_(1e-6)
