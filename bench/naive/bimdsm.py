"""Multiscale denoising score matching of deep energies: MDSM of a visible EBM, BiMDSM of an EBLVM (BiSM, Algorithm 1).

As published: the noise is redrawn and the energy recomputed in every real and every unrolled lower step, the lower
loss is the Fisher divergence divided by sigma, and the unrolled Adam keeps its whole graph. Real steps are in place,
with theta frozen, so that they pay for one forward pass each and keep no graph of the network.
Shape tags: B batch, H latent units.
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

Draw = Callable[[], tuple[Tensor, Tensor]]  # (eps as the images, noise_BH), standard normal, in the order of the steps


class Block(nn.Module):
    def __init__(self, inputs: int, outputs: int, published: bool):
        super().__init__()
        self.shrinks = inputs != outputs
        self.first = nn.Conv2d(inputs, inputs, 3, padding=1, bias=not published)
        self.second = nn.Conv2d(inputs, outputs, 3, padding=1)
        self.shortcut = nn.Conv2d(inputs, outputs, 1) if self.shrinks or published else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        y = self.second(F.elu(self.first(F.elu(x))))
        if not self.shrinks:
            return self.shortcut(x) + y
        return self.shortcut(F.avg_pool2d(x, 2)) + F.avg_pool2d(y, 2)


class Energy(nn.Module):
    """|elu(linear(f + h, h))|^2, or |elu(linear(f))|^2 without a latent, f the ResNet's features of v.

    The published network without a latent is (a.x + a0)(b.x + b0) + c.x^2 + c0 of the last block's x."""

    def __init__(
        self,
        shape: tuple[int, int, int],
        latent: int,
        width: int,
        depth: int,
        head_width: int,
        visible: bool,
        published: bool = False,
    ):
        super().__init__()
        self.published, self.quadratic = published, published and visible
        self.stem = nn.Conv2d(shape[0], width, 3, padding=1)
        blocks: list[nn.Module] = []
        for stage in (1, 2, 4):
            blocks += [Block(stage * width, 2 * stage * width, published)]
            blocks += [Block(2 * stage * width, 2 * stage * width, published) for _ in range(depth // 6 - 1)]
        self.blocks = nn.Sequential(*blocks)
        flat = 8 * width * (shape[1] // 8) * (shape[2] // 8)
        if self.quadratic:
            self.factors, self.squares = nn.Linear(flat, 2), nn.Linear(flat, 1)
        else:
            self.out = nn.Linear(flat, latent)
            self.head = nn.Linear(latent if visible else 2 * latent, head_width)

    def forward(self, v: Tensor, h_BH: Tensor | None = None) -> Tensor:
        x = self.blocks(self.stem(v))
        if self.quadratic:
            a, b = self.factors(x.flatten(1)).unbind(-1)
            return a * b + self.squares(x.flatten(1).square()).squeeze(-1)
        f_BH = self.out((x if self.published else F.elu(x)).flatten(1))
        coupled = f_BH if h_BH is None else torch.cat([f_BH + h_BH, h_BH], -1)
        return F.elu(self.head(coupled)).square().sum(-1)


def published_posterior(channels: int, size: int, latent: int) -> nn.Module:
    """v -> (mean, log std) [B, 2H]; the two linear layers are one."""
    layers: list[nn.Module] = []
    for inputs, outputs in ((channels, 64), (64, 128), (128, 256)):
        layers += [nn.Conv2d(inputs, outputs, 3, stride=2, padding=1), nn.LeakyReLU()]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(256 * (size // 8) ** 2, 2 * latent))


class Mdsm:
    """Each step: the gradient of mean_B 1/2 |s(v + sigma eps) / sigma + eps / sigma0^2|^2, then Adam on theta."""

    def __init__(
        self,
        shape: tuple[int, int, int],
        sigma: Tensor,
        *,
        latent: int,
        width: int,
        depth: int,
        head_width: int,
        sigma0: float,
        lr: float,
        betas: tuple[float, float],
        visible: bool = True,
        published: bool = False,
    ):
        self.sigma = sigma.view(-1, 1, 1, 1)
        self.sigma0, self.lr, self.betas, self.latent = sigma0, lr, betas, latent
        self.model = Energy(shape, latent, width, depth, head_width, visible, published).to(sigma.dtype)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr, betas, fused=True)

    def residual(self, log_density: Tensor, x: Tensor, eps: Tensor) -> Tensor:
        (score,) = torch.autograd.grad(log_density.sum(), x, create_graph=True)
        return 0.5 * (score / self.sigma + eps / self.sigma0**2).square().flatten(1).sum(-1).mean()

    def gradient(self, v: Tensor, draw: Draw) -> list[Tensor]:
        eps, _ = draw()
        x = (v + self.sigma * eps).requires_grad_()
        return self.gradients(self.residual(-self.model(x), x, eps))

    def gradients(self, loss: Tensor) -> list[Tensor]:
        return list(torch.autograd.grad(loss, list(self.model.parameters()), materialize_grads=True))

    def step(self, v: Tensor, draw: Draw) -> None:
        for p, g in zip(self.model.parameters(), self.gradient(v, draw), strict=True):
            p.grad = g
        self.optimizer.step()

    def draw_fresh(self, v: Tensor) -> Draw:
        return lambda: (torch.randn_like(v), v.new_empty(len(v), self.latent).normal_())


class BiMdsm(Mdsm):
    """theta by Adam through N unrolled steps of Adam on q = N(mean, std^2), (mean, log std) = net(v); K real steps."""

    def __init__(self, shape: tuple[int, int, int], sigma: Tensor, *, N: int, K: int, posterior_width: int, **how):
        super().__init__(shape, sigma, **how, visible=False)
        self.N, self.K = N, K
        lean = nn.Sequential(
            nn.Conv2d(shape[0], posterior_width, 5, stride=4, padding=2),
            nn.ELU(),
            nn.Conv2d(posterior_width, 2 * posterior_width, 3, stride=2, padding=1),
            nn.ELU(),
            nn.Conv2d(2 * posterior_width, 2 * self.latent, (shape[1] // 8, shape[2] // 8)),
            nn.Flatten(),
        )
        published = published_posterior(shape[0], shape[1], self.latent)
        self.posterior = (published if self.model.published else lean).to(sigma.dtype)
        self.lower_optimizer = torch.optim.Adam(self.posterior.parameters(), self.lr, self.betas, fused=True)

    def log_q(self, phi: dict[str, Tensor], v: Tensor, h_BH: Tensor) -> Tensor:
        mean, log_std = functional_call(self.posterior, phi, (v,)).chunk(2, -1)
        return -(0.5 * ((h_BH - mean) * torch.exp(-log_std)).square() + log_std).sum(-1)

    def sample(self, phi: dict[str, Tensor], v: Tensor, noise_BH: Tensor) -> Tensor:
        mean, log_std = functional_call(self.posterior, phi, (v,)).chunk(2, -1)
        return mean + torch.exp(log_std) * noise_BH

    def lower_loss(self, phi: dict[str, Tensor], v: Tensor, noise_BH: Tensor) -> Tensor:
        """mean_B of D_F(q || p) / sigma: 1/2 |grad_h log q(h|v) + grad_h E(v, h)|^2 at one sample."""
        mean, log_std = functional_call(self.posterior, phi, (v,)).chunk(2, -1)
        h = mean + torch.exp(log_std) * noise_BH
        (slope,) = torch.autograd.grad(self.model(v, h).sum(), h, create_graph=True)
        difference = slope - (h - mean) * torch.exp(-2 * log_std)
        return (0.5 * difference.square().sum(-1) / self.sigma.flatten()).mean()

    def lower_steps(self, v: Tensor, draw: Draw) -> None:
        """K real steps on phi (Eq. 12)."""
        phi = dict(self.posterior.named_parameters())
        self.model.requires_grad_(False)
        for _ in range(self.K):
            eps, noise = draw()
            loss = self.lower_loss(phi, v + self.sigma * eps, noise)
            for p, g in zip(phi.values(), torch.autograd.grad(loss, list(phi.values())), strict=True):
                p.grad = g
            self.lower_optimizer.step()
        self.model.requires_grad_(True)

    def unrolled_steps(self, v: Tensor, draw: Draw) -> dict[str, Tensor]:
        """phi_N(theta) after N differentiable steps of Adam from phi and its real moments (Eq. 13)."""
        phi: dict[str, Tensor] = dict(self.posterior.named_parameters())
        states = {k: self.lower_optimizer.state[p] for k, p in phi.items()}
        m = {k: states[k].get("exp_avg", torch.zeros_like(p)) for k, p in phi.items()}
        s = {k: states[k].get("exp_avg_sq", torch.zeros_like(p)) for k, p in phi.items()}
        count = int(next(iter(states.values())).get("step", 0))
        b1, b2 = self.betas
        for n in range(self.N):
            eps, noise = draw()
            loss = self.lower_loss(phi, v + self.sigma * eps, noise)
            grads = dict(zip(phi, torch.autograd.grad(loss, list(phi.values()), create_graph=True), strict=True))
            t = count + n + 1
            m = {k: torch.lerp(m[k], g, 1 - b1) for k, g in grads.items()}
            s = {k: torch.addcmul(b2 * s[k], g, g, value=1 - b2) for k, g in grads.items()}
            # 1e-16 under the root: at a zero second moment the derivative of sqrt is infinite.
            roots = {k: torch.sqrt(a / (1 - b2**t) + 1e-16) + 1e-8 for k, a in s.items()}
            phi = {k: torch.addcdiv(p, m[k], roots[k], value=-self.lr / (1 - b1**t)) for k, p in phi.items()}
        return phi

    def gradient(self, v: Tensor, draw: Draw) -> list[Tensor]:
        """K real steps, N unrolled ones, then the gradient of the upper loss for theta."""
        self.lower_steps(v, draw)
        phi = self.unrolled_steps(v, draw)
        eps, noise = draw()
        x = (v + self.sigma * eps).requires_grad_()
        h = self.sample(phi, x.detach(), noise)  # a constant for grad_v
        return self.gradients(self.residual(-self.model(x, h) - self.log_q(phi, x, h), x, eps))
