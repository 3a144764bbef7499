"""BiDVL with convolutional nets and offset opposite terms (Kan et al. 2022, Eq. 13-14), one lower step an iteration.

As a careful reader of the paper writes it: a pass of the generator without a graph for the upper level, another with
one for the lower level; the energy's weights get no gradient in the lower level, nor the encoder's where it reads
generated images; activations in place, fused Adam. Nothing is computed that nobody reads.
Shape tags: B batch, H latent units.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Spectral(nn.Module):
    """A convolution with weight W / |W^T u|; `refresh` is one power iteration of u."""

    u: Tensor

    def __init__(self, inputs: int, outputs: int, kernel: int, stride: int = 1, padding: int = 0):
        super().__init__()
        self.conv = nn.Conv2d(inputs, outputs, kernel, stride, padding)
        self.register_buffer("u", F.normalize(torch.randn(outputs), dim=0))

    def forward(self, x: Tensor) -> Tensor:
        c = self.conv
        w = c.weight / torch.linalg.vector_norm(self.u @ c.weight.flatten(1))
        return F.conv2d(x, w, c.bias, c.stride, c.padding)

    @torch.no_grad()
    def refresh(self) -> None:
        w = self.conv.weight.flatten(1)
        self.u = F.normalize(w @ F.normalize(self.u @ w, dim=0), dim=0)


def energy(channels: int, halvings: int, width: int) -> nn.Sequential:
    layers: list[nn.Module] = []
    inputs = channels
    for w in (width << i for i in range(halvings)):
        layers += [Spectral(inputs, w, 3, 1, 1), leaky(0.1), Spectral(w, w, 4, 2, 1), leaky(0.1)]
        inputs = w
    top = width << halvings
    layers += [Spectral(inputs, top, 3, 1, 1), leaky(0.1), Spectral(top, top, 4)]
    return nn.Sequential(*layers, Spectral(top, top, 1), leaky(0.1), Spectral(top, 1, 1), nn.Flatten(0), nn.Softplus())


def encoder(channels: int, halvings: int, width: int, latent: int) -> nn.Sequential:
    layers = [nn.Conv2d(channels, width, 3, 1, 1, bias=False), nn.BatchNorm2d(width), leaky(0.2)]
    for w in (width << i for i in range(halvings)):
        layers += [nn.Conv2d(w, 2 * w, 4, 2, 1, bias=False), nn.BatchNorm2d(2 * w), leaky(0.2)]
    return nn.Sequential(*layers, nn.Conv2d(width << halvings, 2 * latent, 4), nn.Flatten())


def generator(channels: int, halvings: int, width: int, latent: int) -> nn.Sequential:
    top = width << halvings
    layers: list[nn.Module] = [nn.ConvTranspose2d(latent, top, 4, bias=False), nn.BatchNorm2d(top), nn.ReLU(True)]
    inputs = top
    for w in (top >> i for i in range(halvings)):
        layers += [nn.ConvTranspose2d(inputs, w, 4, 2, 1, bias=False), nn.BatchNorm2d(w), nn.ReLU(True)]
        inputs = w
    return nn.Sequential(nn.Unflatten(1, (latent, 1, 1)), *layers, nn.Conv2d(inputs, channels, 3, 1, 1), nn.Tanh())


def leaky(slope: float) -> nn.Module:
    return nn.LeakyReLU(slope, inplace=True)


class Bidvl:
    """One `step`: the energy by Eq. 14, then encoder and generator by Eq. 13 at the moved energy."""

    def __init__(
        self,
        shape: tuple[int, int, int],
        *,
        latent: int,
        widths: tuple[int, int, int],
        ratio: float,
        rates: tuple[float, float],
        betas: tuple[float, float],
        weight_decay: float,
        dtype: torch.dtype,
    ):
        channels, halvings = shape[0], (shape[1] // 4).bit_length() - 1
        self.latent, self.ratio = latent, ratio
        self.energy = energy(channels, halvings, widths[0]).to(dtype)
        self.encoder = encoder(channels, halvings, widths[1], latent).to(dtype)
        self.generator = generator(channels, halvings, widths[2], latent).to(dtype)
        self.phi = [*self.encoder.parameters(), *self.generator.parameters()]
        self.energy_optimizer = torch.optim.Adam(self.energy.parameters(), rates[0], betas, fused=True)
        self.lower_optimizer = torch.optim.Adam(self.phi, rates[1], betas, weight_decay=weight_decay, fused=True)

    def step(self, v: Tensor, h_BH: Tensor, eps_BH: Tensor) -> None:
        """v in [-1, 1]."""
        for layer in self.energy:
            if isinstance(layer, Spectral):
                layer.refresh()
        self.upper_step(v, h_BH)
        self.lower_step(v, h_BH, eps_BH)

    def upper_step(self, v: Tensor, h_BH: Tensor) -> None:
        with torch.no_grad():
            fake = self.generator(h_BH)
        self.energy_optimizer.zero_grad()
        (self.energy(v).mean() - self.energy(fake).mean()).backward()
        self.energy_optimizer.step()

    def lower_step(self, v: Tensor, h_BH: Tensor, eps_BH: Tensor) -> None:
        self.lower_optimizer.zero_grad()
        self.energy.requires_grad_(False)
        mean, log_var = self.encoder(v).chunk(2, -1)
        rebuilt = self.generator(mean + torch.exp(0.5 * log_var) * eps_BH)
        fake = self.generator(h_BH)
        error = (v - rebuilt).square().sum() / len(v)
        kl = 0.5 * (mean.square() + torch.exp(log_var) - 1 - log_var).sum() / len(v)
        self.encoder.requires_grad_(False)
        fake_mean, _ = self.encoder(fake).chunk(2, -1)
        self.encoder.requires_grad_(True)
        loss = self.energy(fake).mean() + self.ratio * (error + kl) + (fake_mean - h_BH).square().mean()
        loss.backward()
        self.energy.requires_grad_(True)
        self.lower_optimizer.step()
