"""The nets of BiDVL: an energy with spectral normalisation, a Gaussian encoder, a deterministic generator; their start.

`sn-conv` cascades convolutions, with twice the channels at half the size, for images of 8, 16, 32, 64 or 128 pixels
(paper, section 5); `sn-resnet` has the blocks of SNGAN, for 32 and 128 pixels (appendix B). Images are in [-1, 1].

Shape tags: B batch, C channels, S image size, H latent units, w the net's width.
"""

import math
from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from eblvm.engine.nets.base import Energy, Net
from eblvm.engine.nets.batch_norm import BatchNorm, Seen, Sequence, Tracked
from eblvm.engine.nets.chunks import chunked
from eblvm.engine.nets.posteriors import Gaussian
from eblvm.engine.nets.spectral import Spectral, power_iteration
from eblvm.engine.types import Params
from eblvm.kernels import philox
from eblvm.kernels.philox import Key, Purpose, purpose

SMALLEST = 4  # pixels of the coarsest image
RESNET_SIZES = (32, 128)
DrawStart = Callable[[nn.Module, Key, Purpose, int], Params]  # (net, key, purpose, its first stream) -> parameters
START_ITERATIONS = 15  # of the power method, before training
NORMAL_STD = 0.02

LeakyReLU = partial(nn.LeakyReLU, inplace=True)  # its inputs are results that nothing else reads
relu = partial(nn.ReLU, inplace=True)
conv = partial(nn.Conv2d, bias=False, device="meta")
doubled = partial(F.interpolate, scale_factor=2, mode="nearest")


def through(net: Sequence, x: Tensor, seen: Seen | None, micro_batch: int | None) -> Tensor:
    """Return net(x, seen); in training over chunks of the batch, if `micro_batch` is given."""
    if micro_batch is None or seen is None or len(x) <= micro_batch:
        return net(x, seen)
    return chunked(net, x, seen, micro_batch)


class Convolutions:
    """The convolutional nets for C channels of S = 4 * 2^n pixels."""

    bounded_variance = False

    def __init__(self, channels: int, size: int):
        self.channels, self.halvings = channels, (size // SMALLEST).bit_length() - 1

    def trunk(self, w: int) -> tuple[Sequence, int]:
        """Build v -> f[B, 2^n w] of the energy: at every size a 3x3 convolution and a 4x4 one of stride 2."""
        layers, inputs = [], self.channels
        for width in (w << i for i in range(self.halvings)):
            layers += [
                Spectral(inputs, width, 3, 1, 1),
                LeakyReLU(0.1),
                Spectral(width, width, 4, 2, 1),
                LeakyReLU(0.1),
            ]
            inputs = width
        top = w << self.halvings
        layers += [Spectral(inputs, top, 3, 1, 1), LeakyReLU(0.1), Spectral(top, top, 4), nn.Flatten()]
        return Sequence(*layers, stage=4), top

    def encoder(self, w: int, latent: int) -> Sequence:
        """Build v -> [B, 2H], with twice the channels at half the size."""
        layers: list[nn.Module] = [conv(self.channels, w, 3, 1, 1), BatchNorm(w), LeakyReLU(0.2)]
        for width in (w << i for i in range(self.halvings)):
            layers += [conv(width, 2 * width, 4, 2, 1), BatchNorm(2 * width), LeakyReLU(0.2)]
        top = w << self.halvings
        return Sequence(*layers, nn.Conv2d(top, 2 * latent, SMALLEST, device="meta"), nn.Flatten(), stage=3)

    def generator(self, w: int, latent: int) -> Sequence:
        """Build h -> [B, C, S, S], with half the channels at twice the size."""
        top = w << self.halvings
        layers: list[nn.Module] = [FromLatent(latent, top, bias=False), BatchNorm(top), relu()]
        inputs = top
        for width in (top >> i for i in range(self.halvings)):
            up = nn.ConvTranspose2d(inputs, width, 4, 2, 1, bias=False, device="meta")
            layers += [up, BatchNorm(width), relu()]
            inputs = width
        return Sequence(*layers, nn.Conv2d(inputs, self.channels, 3, padding=1, device="meta"), stage=3)


class Blocks:
    """SNGAN's residual nets for C channels of 32 or 128 pixels."""

    bounded_variance = True

    def __init__(self, channels: int, size: int):
        self.channels = channels
        self.down = (True, True, False, False) if size == 32 else (*[True] * 5, False)  # which blocks halve the image
        self.factors = (1, 1, 1, 1) if size == 32 else (1, 2, 4, 8, 16, 16)  # width of a block's result, in w

    def trunk(self, w: int) -> tuple[Sequence, int]:
        layers, inputs = [], self.channels
        for i, (factor, down) in enumerate(zip(self.factors, self.down, strict=True)):
            layers.append(DownBlock(inputs, factor * w, down, first=i == 0))
            inputs = factor * w
        return Sequence(*layers, relu(), SumPool(), stage=1), inputs

    def encoder(self, w: int, latent: int) -> Sequence:
        trunk, width = self.trunk(w)
        return Sequence(trunk, Spectral(width, 2 * latent))

    def generator(self, w: int, latent: int) -> Sequence:
        factors = (1, 1, 1) if len(self.factors) == 4 else (16, 8, 4, 2, 1)
        layers: list[nn.Module] = [FromLatent(latent, factors[0] * w, bias=True)]
        inputs = factors[0] * w
        for factor in factors:
            layers.append(UpBlock(inputs, factor * w))
            inputs = factor * w
        last = nn.Conv2d(inputs, self.channels, 3, padding=1, device="meta")
        return Sequence(*layers, BatchNorm(inputs), relu(), last, stage=1)


class FromLatent(nn.Module):
    """h [B, H] -> [B, C, 4, 4]."""

    def __init__(self, latent: int, channels: int, bias: bool):
        super().__init__()
        self.linear = nn.Linear(latent, channels * SMALLEST**2, bias=bias, device="meta")

    def forward(self, h: Tensor) -> Tensor:
        return self.linear(h).unflatten(-1, (-1, SMALLEST, SMALLEST))


class SumPool(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.sum((-2, -1))


class DownBlock(nn.Module):
    """shortcut(x) + conv(relu(conv(relu(x)))), halved by averages; the first block of a net has no first relu."""

    def __init__(self, inputs: int, outputs: int, down: bool, first: bool):
        super().__init__()
        self.down, self.first = down, first
        self.one = Spectral(inputs, inputs if not first and down else outputs, 3, 1, 1)
        self.two = Spectral(inputs if not first and down else outputs, outputs, 3, 1, 1)
        self.shortcut = Spectral(inputs, outputs, 1) if down or inputs != outputs else None

    def forward(self, x: Tensor) -> Tensor:
        y = self.two(F.relu_(self.one(x if self.first else F.relu(x))))
        if self.down:  # averaging and a 1x1 convolution commute: the cheaper order
            x, y = F.avg_pool2d(x, 2), F.avg_pool2d(y, 2)
        return y + (x if self.shortcut is None else self.shortcut(x))


class UpBlock(Tracked):
    """shortcut(up(x)) + conv(relu(norm(conv(up(relu(norm(x))))))), `up` repeating every pixel 2x2."""

    def __init__(self, inputs: int, outputs: int):
        super().__init__()
        self.norm_one, self.norm_two = BatchNorm(inputs), BatchNorm(outputs)
        self.one = nn.Conv2d(inputs, outputs, 3, padding=1, device="meta")
        self.two = nn.Conv2d(outputs, outputs, 3, padding=1, device="meta")
        self.shortcut = nn.Conv2d(inputs, outputs, 1, device="meta")

    def forward(self, x: Tensor, seen: Seen | None) -> Tensor:
        y = self.one(doubled(F.relu_(self.norm_one(x, seen))))
        y = self.two(F.relu_(self.norm_two(y, seen)))
        return y + doubled(self.shortcut(x))  # repeating and a 1x1 convolution commute: the cheaper order


def xavier(model: nn.Module, key: Key, of: Purpose, first: int) -> Params:
    """Draw weights N(0, 2 / (fan in + fan out)), scales of batch norms 1, biases 0; streams from `first`."""
    drawn: Params = {}
    for name, p in model.named_parameters():
        draw = (key, purpose(of, first + len(drawn)), p.shape[0], tuple(p.shape[1:]))
        if p.dim() > 1:
            fans = (p.shape[0] + p.shape[1]) * math.prod(p.shape[2:])
            drawn[name] = philox.normal(*draw) * math.sqrt(2 / fans)
        else:
            drawn[name] = torch.full_like(philox.uniform(*draw), float(name.endswith("weight")))
    return drawn


def normal(model: nn.Module, key: Key, of: Purpose, first: int) -> Params:
    """Draw the released programs' start: weights N(0, 0.02^2), their biases uniform in +-1/sqrt(fan in); batch norms 1
    and 0; streams from `first`."""
    shapes = {name: p.shape for name, p in model.named_parameters()}
    drawn: Params = {}
    for name, shape in shapes.items():
        draw = (key, purpose(of, first + len(drawn)), shape[0], tuple(shape[1:]))
        weight = shapes[name.removesuffix("bias").removesuffix("weight") + "weight"]
        if len(shape) > 1:
            drawn[name] = NORMAL_STD * philox.normal(*draw)
        elif len(weight) > 1:
            drawn[name] = (2 * philox.uniform(*draw) - 1) / math.sqrt(math.prod(weight[1:]))
        else:
            drawn[name] = torch.full_like(philox.uniform(*draw), float(name.endswith("weight")))
    return drawn


STARTS: dict[str, DrawStart] = {"xavier": xavier, "normal": normal}


def start_buffers(model: nn.Module, params: Params, key: Key, first: int) -> Params:
    """Return spectral vectors after some power iterations from a random direction, running means 0 and variances 1."""
    buffers: Params = {}
    for i, (name, b) in enumerate(model.named_buffers()):
        drawn = philox.normal(key, purpose(Purpose.INIT_THETA, first + i), len(b))
        kind = name.rpartition(".")[2]
        buffers[name] = drawn if kind == "u" else torch.full_like(drawn, float(kind == "var"))
    for _ in range(START_ITERATIONS):
        buffers = power_iteration(params, buffers)
    return buffers


class SpectralEnergy(Energy):
    """E(v) = head(trunk(v)), or E(v, h) = head(trunk(v), net(h)); with `positive` softplus keeps it above zero.

    A marginal energy ignores h."""

    start: DrawStart = staticmethod(xavier)
    channels_last = False

    def __init__(self, trunk: Sequence, width: int, latent: int, positive: bool):
        super().__init__()
        self.trunk, self.positive = trunk, positive
        hidden = (Spectral(latent, width), LeakyReLU(0.1), Spectral(width, width)) if latent else ()
        self.latent_net = nn.Sequential(*hidden) if hidden else None
        merged = 2 * width if latent else width
        self.head_net = nn.Sequential(Spectral(merged, width), LeakyReLU(0.1), Spectral(width, 1))

    def features(self, v: Tensor) -> Tensor:
        return through(self.trunk, v, [], self.micro_batch)

    def head(self, f: Tensor, h: Tensor) -> Tensor:
        x = f if self.latent_net is None else torch.cat([f, self.latent_net(h)], -1)
        e = self.head_net(x).squeeze(-1)
        return F.softplus(e) if self.positive else e

    def initial(self, key: Key) -> Params:
        return ordered(self.start(self, key, Purpose.INIT_THETA, 0), self.channels_last)


class Encoder(Gaussian):
    """q(h | v) = N(mean, std^2); with `bounded` the variance is sigmoid(-x) < 1 (appendix B)."""

    net: Sequence
    start: DrawStart = staticmethod(xavier)
    channels_last = False

    def __init__(self, net: Sequence, latent: int, bounded: bool):
        super().__init__(net, latent)
        self.bounded = bounded

    def params(self, v: Tensor, seen: Seen | None = None) -> tuple[Tensor, Tensor]:
        """Return (mean, log std), each [B, H]; `seen` as in batch_norm.py."""
        mean_BH, log_var_BH = through(self.net, v, seen, self.micro_batch).chunk(2, -1)
        return mean_BH, 0.5 * (-F.softplus(log_var_BH) if self.bounded else log_var_BH)

    def initial(self, key: Key) -> Params:
        return ordered(self.start(self, key, Purpose.INIT_PHI, 0), self.channels_last)


class Generator(Net):
    """v = G(h) in [-1, 1], deterministic."""

    start: DrawStart = staticmethod(xavier)
    channels_last = False

    def __init__(self, net: Sequence):
        super().__init__()
        self.net = net

    def decode(self, h: Tensor, seen: Seen | None = None) -> Tensor:
        """Map [B, H] -> [B, C, S, S]; `seen` as in batch_norm.py."""
        return torch.tanh(through(self.net, h, seen, self.micro_batch))

    def initial(self, key: Key) -> Params:
        return ordered(self.start(self, key, Purpose.INIT_PHI, 2**15), self.channels_last)


def ordered(params: Params, channels_last: bool) -> Params:
    """Return the parameters, with convolutions in the memory order of the images."""
    order = torch.channels_last if channels_last else torch.contiguous_format
    return {k: p.contiguous(memory_format=order) if p.dim() == 4 else p for k, p in params.items()}


def part(tree: Params, prefix: str) -> Params:
    return {name.removeprefix(prefix): p for name, p in tree.items() if name.startswith(prefix)}
