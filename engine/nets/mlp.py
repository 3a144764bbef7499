"""An EBLVM of points, built from MLPs, with Gaussian h:

    E(v, h) = 1/2 |(v - b) / sigma|^2 + 1/2 |h|^2 + |elu(f(v) + U h)|^2,   f an MLP,   sigma = exp(log_sigma)

All three terms are at least 0 and the first two are quadratic, so p(v, h) is normalisable for all parameters.
The MLPs get (v - mean) / std, with the data's mean and standard deviation; `Toy` has those of the 2-D sets.
Shape tags: B batch, D visible units, H latent units, M units of the squared norm.
"""

import math
from itertools import pairwise

import torch
from torch import Tensor, nn

from eblvm.engine.nets.base import Energy, fan_in_uniform
from eblvm.engine.nets.posteriors import Gaussian
from eblvm.engine.types import Params
from eblvm.kernels.elu_second_order import elu_second_order
from eblvm.kernels.philox import Key, Purpose

FIRST_GAIN = 4.0  # of the first layer's initial weights and biases: learns edges finer than the data's std quickly
WIDE = 2.0  # initial sigma, in units of the data's std: no mass far away, where no data correct the model


def mlp(widths: tuple[int, ...]) -> nn.Sequential:
    """Build linear layers with SiLU between them, which is smooth, as a score loss differentiates twice."""
    layers: list[nn.Module] = []
    for fan_in, fan_out in pairwise(widths):
        layers += [nn.Linear(fan_in, fan_out, device="meta"), nn.SiLU()]
    return nn.Sequential(*layers[:-1])


class MlpEnergy(Energy):
    """features(v) = (1/2 |(v - b) / sigma|^2 [B], f(v) [B, M]); f has `depth` hidden layers of `width` units."""

    def __init__(
        self,
        visible: int,
        latent: int,
        width: int = 64,
        depth: int = 3,
        head_width: int = 64,
        mean: float = 0.0,
        std: float = 1.0,
    ):
        super().__init__()
        self.visible, self.latent, self.mean, self.std = visible, latent, mean, std
        self.b = nn.Parameter(torch.empty(visible, device="meta"))
        self.log_sigma = nn.Parameter(torch.empty(visible, device="meta"))
        self.feature_net = mlp((visible, *[width] * depth, head_width))
        self.coupling = nn.Linear(latent, head_width, bias=False, device="meta")

    def initial(self, key: Key) -> Params:
        """Set b = mean, sigma = 2 std, all else uniform in +-1/sqrt(fan in), 4 times that in the first layer.

        Leading axes are those of key.seed."""
        drawn = fan_in_uniform(self, key, Purpose.INIT_THETA)
        drawn |= {k: FIRST_GAIN * p for k, p in drawn.items() if k.startswith("feature_net.0.")}
        shape = (*torch.as_tensor(key.seed).shape, self.visible)
        return {"b": torch.full(shape, self.mean), "log_sigma": torch.full(shape, math.log(WIDE * self.std)), **drawn}

    def features(self, v_BD: Tensor) -> tuple[Tensor, Tensor]:
        quadratic_B = 0.5 * ((v_BD - self.b) * torch.exp(-self.log_sigma)).square().sum(-1)
        return quadratic_B, self.feature_net((v_BD - self.mean) / self.std)

    def head(self, f: tuple[Tensor, Tensor], h: Tensor) -> Tensor:
        quadratic_B, f_BM = f
        norm = elu_second_order(f_BM + self.coupling(h)).square().sum(-1)
        return quadratic_B + 0.5 * h.square().sum(-1) + norm


class MlpGaussian(Gaussian):
    """q(h | v) = N(mean, std^2) with (mean, log std) from an MLP of `depth` hidden layers of `width` units.

    `mean` and `std` are those of the data."""

    def __init__(self, visible: int, latent: int, width: int = 32, depth: int = 2, mean: float = 0.0, std: float = 1.0):
        super().__init__(mlp((visible, *[width] * depth, 2 * latent)), latent)
        self.data_mean, self.data_std = mean, std

    def initial(self, key: Key) -> Params:
        return fan_in_uniform(self, key, Purpose.INIT_PHI)

    def params(self, v_BD: Tensor) -> tuple[Tensor, Tensor]:
        return super().params((v_BD - self.data_mean) / self.data_std)
