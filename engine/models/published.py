"""The deep models of BiSM (appendix B.2) and VaGES (appendix F.2.2) at their published sizes, to the parameter.

                        width   layers             theta        phi   (h of 50 units)
    MNIST, 32x32           64       12         9,859,250    779,364   (28x28, padded with zeros)
    CIFAR-10, CelebA32    128       18        63,936,562    780,516
    CelebA64              128   24, 18    18: 68,876,338  2,009,316   (BiSM has 24 layers, VaGES 18)

The EBLVM is |elu(linear(f + h, h))|^2 with (S/8)^2 4 width units in that layer. The EBM has the features of the last
block under the quadratic output of the network that BiSM's MDSM baseline follows (Li et al. 2019); for CIFAR-10 these
are 62,339,075 parameters, the 238 MB that VaGES reports.
Shape tags: B batch, S image size, H latent units.
"""

from torch import Tensor, nn

from eblvm.engine.autodiff.convolution import Convolution
from eblvm.engine.autodiff.mixed_precision import autocast
from eblvm.engine.models.deep import CoupledHead, DeepEBM, DeepEnergy, ResNet
from eblvm.engine.models.energy import Params, fan_in_uniform
from eblvm.engine.models.posteriors import Gaussian
from eblvm.kernels.philox import Key, Purpose

POSTERIOR_CHANNELS = (64, 128, 256)
Shape = tuple[int, int, int]


def published_eblvm(
    shape: Shape,
    latent: int = 50,
    width: int = 128,
    depth: int = 18,
    activation: str = "elu",
    checkpoint: str = "none",
    precision: str = "fp32",
    channels_last: bool = False,
) -> DeepEnergy:
    """E(v, h) for images v [B, C, S, S] and h [B, H]; options as those of `ResNet`."""
    features = ResNet(shape, latent, width, depth, activation, checkpoint, precision, channels_last, "published")
    return DeepEnergy(features, CoupledHead(latent, head_width(shape, width)))


def published_ebm(
    shape: Shape,
    width: int = 128,
    depth: int = 18,
    activation: str = "elu",
    checkpoint: str = "none",
    precision: str = "fp32",
    channels_last: bool = False,
) -> DeepEBM:
    """E(v) for images v [B, C, S, S]; options as those of `ResNet`."""
    features = ResNet(shape, None, width, depth, activation, checkpoint, precision, channels_last, "published")
    return DeepEBM(features, QuadraticHead(features.flat))


def head_width(shape: Shape, width: int) -> int:
    """Units of the EBLVM's last layer: (S/8)^2 4 width, 8192 for CIFAR-10."""
    return 4 * width * (shape[1] // 8) * (shape[2] // 8)


class QuadraticHead(nn.Module):
    """f[B, F] -> (a.f + a0)(b.f + b0) + c.f^2 + c0 [B] (Li et al. 2019)."""

    def __init__(self, features: int):
        super().__init__()
        self.factors = nn.Linear(features, 2, device="meta")
        self.squares = nn.Linear(features, 1, device="meta")

    def forward(self, f: Tensor) -> Tensor:
        left, right = self.factors(f).unbind(-1)
        return left * right + self.squares(f.square()).squeeze(-1)


class PublishedGaussian(Gaussian):
    """q(h | v) = N(mean, std^2): three 3x3 convolutions of stride 2 with LeakyReLU, linear layers to mean and log std.

    The two linear layers are one of twice the width. LeakyReLU has torch's slope, 0.01: the papers give none.
    """

    def __init__(self, shape: Shape, latent: int = 50, precision: str = "fp32"):
        inputs, height, across = shape
        layers: list[nn.Module] = []
        for outputs in POSTERIOR_CHANNELS:
            layers += [Convolution(inputs, outputs, 3, stride=2, padding=1, device="meta"), nn.LeakyReLU()]
            inputs, height, across = outputs, (height + 1) // 2, (across + 1) // 2
        layers += [nn.Flatten(), nn.Linear(inputs * height * across, 2 * latent, device="meta")]
        super().__init__(nn.Sequential(*layers), latent)
        self.precision = precision

    def initial(self, key: Key) -> Params:
        return fan_in_uniform(self, key, Purpose.INIT_PHI)

    def params(self, v: Tensor) -> tuple[Tensor, Tensor]:
        with autocast(v, self.precision):
            return super().params(v)
