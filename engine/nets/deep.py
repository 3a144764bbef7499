"""The deep EBLVM, E(v, h) = g3(g2(g1(v), h)) (BiSM section 5.2, appendix B.2), and the fully visible EBM, g3(g1(v)).

    g1  a ResNet with ELU and average pooling, and a linear layer to the width of h      -> `ResNet`, the features
    g2  additive coupling, (f, h) -> (f + h, h)
    g3  a linear layer, ELU, squared norm                                                -> with g2, the heads

The papers do not specify all of g1. `network` selects the rest: "published", as in the papers' models, or "lean", with
fewer parameters and operations:

                                                 published              lean
    shortcut of a block that keeps the shape     a 1x1 convolution      the identity
    first convolution of a block                 without bias           with bias
    before the linear layer to h                 nothing                ELU

Shape tags: B batch, C channels, S image size, H latent units.
"""

from collections.abc import Callable
from contextlib import nullcontext
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from eblvm.engine.autodiff.checkpointing import checkpointed
from eblvm.engine.autodiff.convolution import Convolution
from eblvm.engine.autodiff.derivatives import inside_torch_func
from eblvm.engine.autodiff.mixed_precision import HALVES, autocast, full_precision
from eblvm.engine.errors import UserError
from eblvm.engine.nets import gaussian_elu
from eblvm.engine.nets.base import Separable, fan_in_uniform
from eblvm.engine.nets.prepared import by_parts
from eblvm.engine.types import Params
from eblvm.kernels.elu_of_sum import elu_of_sum, joins
from eblvm.kernels.elu_second_order import elu_second_order
from eblvm.kernels.philox import Key, Purpose

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "elu": elu_second_order,
    "softplus": F.softplus,
    "silu": F.silu,
    "relu": F.relu,
}
Forward = Callable[[nn.Module, Tensor], Tensor]


def joins_sums(v: Tensor) -> bool:
    """Is a pass with few launches worth its own path? Where they cost, on a GPU."""
    return v.is_cuda and joins(v)


def plainly(module: nn.Module, x: Tensor) -> Tensor:
    return module(x)


class PooledConvolution(Convolution):
    """A 3x3 convolution, then 2x2 average pooling.

    Both linear maps are one: a 3x3 convolution averaged over 2x2 pixels is a 4x4 one with stride 2, whose kernel is the
    mean of the four shifts of the 3x3 kernel. It needs 16 products instead of 36, and no full-size result."""

    def __init__(self, inputs: int, outputs: int, **options: Any):
        super().__init__(inputs, outputs, 3, stride=2, padding=1, **options)
        self._shifts: dict[tuple[torch.dtype, torch.device], Tensor] = {}

    def kernel(self) -> Tensor:
        """Return the mean of the four shifts: on a GPU by pooling, one launch in w's order in memory; on a CPU, with
        the same bits, by a product, which takes a tenth of the time."""
        w = self.weight
        return F.avg_pool2d(w, 2, 1, 1) if w.is_cuda else (w.flatten(2) @ self.shifts(w)).unflatten(2, (4, 4))

    def shifts(self, like: Tensor) -> Tensor:
        """Return the matrix [9, 16] from a 3x3 kernel to the mean of its four shifts; a constant, made once."""
        place = like.dtype, like.device
        if place not in self._shifts:
            eye = torch.eye(4, dtype=like.dtype, device=like.device)
            mean = (eye[:3] + eye[1:]) / 2
            if inside_torch_func():
                return torch.kron(mean, mean)
            self._shifts[place] = torch.kron(mean, mean)
        return self._shifts[place]


class Layer(nn.Module):
    """Activation, 3x3 convolution, then 2x2 average pooling if the block shrinks the image."""

    def __init__(
        self, inputs: int, outputs: int, activation: Callable[[Tensor], Tensor], pool: bool, bias: bool = True
    ):
        super().__init__()
        self.activation = activation
        self.conv = (
            PooledConvolution(inputs, outputs, bias=bias, device="meta")
            if pool
            else Convolution(inputs, outputs, 3, padding=1, bias=bias, device="meta")
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(self.activation(x))


class Shortcut(nn.Module):
    """The block's other branch: average pooling if the block shrinks the image, then a 1x1 convolution.

    The two commute; in this order the convolution processes a quarter of the pixels."""

    def __init__(self, inputs: int, outputs: int, pool: bool):
        super().__init__()
        self.pool = pool
        self.conv = Convolution(inputs, outputs, 1, device="meta")

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(F.avg_pool2d(x, 2) if self.pool else x)


class Block(nn.Module):
    """x -> shortcut(x) + layer(layer(x)); the first block of a stage halves the image and widens it."""

    def __init__(
        self, inputs: int, outputs: int, activation: Callable[[Tensor], Tensor], run: Forward, network: str = "lean"
    ):
        super().__init__()
        self.run = run
        shrinks, published = inputs != outputs, network == "published"
        self.first = Layer(inputs, inputs, activation, pool=False, bias=not published)
        self.second = Layer(inputs, outputs, activation, pool=shrinks)
        self.shortcut = Shortcut(inputs, outputs, shrinks) if shrinks or published else None

    def forward(self, x: Tensor) -> Tensor:
        kept = x if self.shortcut is None else self.run(self.shortcut, x)
        return kept + self.run(self.second, self.run(self.first, x))

    def joined(self, x: Tensor, residual: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return the two parts of forward(x + residual), for ELU: the next block adds them in its ELU's launch."""
        x, y = elu_of_sum(x, residual)
        _, y = elu_of_sum(self.first.conv(y))
        return self.second.conv(y), x if self.shortcut is None else self.shortcut(x)


class Output(nn.Module):
    """x[B, C, S, S] -> f[B, H], with or without an activation before the linear layer."""

    def __init__(self, inputs: int, outputs: int, activation: Callable[[Tensor], Tensor] | None):
        super().__init__()
        self.activation = activation
        self.linear = nn.Linear(inputs, outputs, device="meta")

    def forward(self, x: Tensor) -> Tensor:
        return self.linear((x if self.activation is None else self.activation(x)).flatten(1))

    def joined(self, x: Tensor, residual: Tensor) -> Tensor:
        """Return forward(x + residual), for ELU, with the product in the precision of its weights."""
        dtype = self.linear.weight.dtype
        y = (x + residual).to(dtype) if self.activation is None else elu_of_sum(x, residual, dtype=dtype)[1]
        with full_precision(y):
            return self.linear(y.flatten(1))


class ResNet(nn.Module):
    """v[B, C, S, S] -> f[B, H]: a convolution to `width`, three stages of 2, 4 and 8 times `width`, a linear layer.

    `depth` counts the 3x3 convolutions of the stages. Without `latent` there is no linear layer, and f is flat,
    [B, 8 width (S/8)^2]: the published EBM. `checkpoint` 'blocks' keeps the input of every block and rebuilds
    the rest in backward (autodiff/checkpointing.py), the first block layer by layer; 'all' does so within every block.
    """

    def __init__(
        self,
        shape: tuple[int, int, int],
        latent: int | None,
        width: int,
        depth: int,
        activation: str = "elu",
        checkpoint: str = "none",
        precision: str = "fp32",
        channels_last: bool = False,
        network: str = "lean",
    ):
        super().__init__()
        channels, height, across = shape
        if height % 8 or across % 8:
            raise UserError(
                f"got images of {height}x{across}, expected sizes divisible by 8 (the ResNet halves them three "
                "times); pad or resize them"
            )
        self.precision, self.checkpoint, self.channels_last = precision, checkpoint, channels_last
        self.activation = activation
        act = ACTIVATIONS[activation]
        self.stem = Convolution(channels, width, 3, padding=1, device="meta")
        widths = [width, 2 * width, 4 * width, 8 * width]
        sizes = [(i, o) for stage in pairwise(widths) for i, o in (stage, *[stage[1:] * 2] * (depth // 6 - 1))]
        # The first block works at the image's full size and sets the peak: it is always checkpointed layer by layer.
        cut = {"none": 0, "blocks": 1, "all": len(sizes)}[checkpoint]
        run = [self._checkpointed if n < cut else plainly for n in range(len(sizes))]
        blocks = [Block(i, o, act, run[n], network) for n, (i, o) in enumerate(sizes)]
        self.blocks = nn.ModuleList(blocks)
        self.flat = 8 * width * (height // 8) * (across // 8)
        before = None if network == "published" else act
        self.out: nn.Module = nn.Flatten() if latent is None else Output(self.flat, latent, before)

    def forward(self, v: Tensor) -> Tensor:
        x = v.contiguous(memory_format=torch.channels_last) if self.channels_last else v
        with autocast(v, self.precision) if self.precision in HALVES else nullcontext():
            if self.checkpoint == "none" and self.activation == "elu" and joins_sums(v):
                return self.joined(x, HALVES.get(self.precision, v.dtype)).to(v.dtype)
            x = self.stem(x)
            for block in self.blocks:
                x = self._checkpointed(block, x) if self.checkpoint != "none" else block(x)
            return self.out(x).to(v.dtype)

    def joined(self, x: Tensor, dtype: torch.dtype) -> Tensor:
        """Return forward(x) with few launches: every sum is part of its ELU's, all weights are one list of `dtype`."""
        net, part = by_parts(self, dtype)
        x, residual = part(net.blocks[0]).joined(part(net.stem)(x), None)
        for block in net.blocks[1:]:
            x, residual = part(block).joined(x, residual)
        return net.out.joined(x, residual) if isinstance(net.out, Output) else net.out(x + residual)

    def _checkpointed(self, module: nn.Module, x: Tensor) -> Tensor:
        return checkpointed(module, x, lambda: autocast(x, self.precision))


class CoupledHead(nn.Module):
    """g3(g2(f, h)) = |elu(linear(f + h, h))|^2, for h[..., B, H]."""

    def __init__(self, latent: int, width: int):
        super().__init__()
        self.linear = nn.Linear(2 * latent, width, device="meta")

    def forward(self, f: Tensor, h: Tensor) -> Tensor:
        coupled = torch.cat([f + h, h.expand(*torch.broadcast_shapes(f.shape, h.shape))], -1)
        return elu_second_order(self.linear(coupled)).square().sum(-1)

    def expected_head(self, f: Tensor, mean: Tensor, log_std: Tensor) -> Tensor:
        return gaussian_elu.expected_head(self.linear.weight, self.linear.bias, f, mean, log_std)

    def expected_pull(self, f: Tensor, mean: Tensor, log_std: Tensor) -> Tensor:
        return gaussian_elu.expected_pull(self.linear.weight, self.linear.bias, f, mean, log_std)

    def expected_slope(self, f: Tensor, mean: Tensor, log_std: Tensor, block: str) -> Tensor:
        return gaussian_elu.expected_slope(self.linear.weight, self.linear.bias, f, mean, log_std, block)

    def expected_curvature(self, f: Tensor, mean: Tensor, log_std: Tensor, block: str) -> Tensor:
        return gaussian_elu.expected_curvature(self.linear.weight, self.linear.bias, f, mean, log_std, block)


class VisibleHead(nn.Module):
    """g3(f) = |elu(linear(f))|^2."""

    def __init__(self, latent: int, width: int):
        super().__init__()
        self.linear = nn.Linear(latent, width, device="meta")

    def forward(self, f: Tensor) -> Tensor:
        return elu_second_order(self.linear(f)).square().sum(-1)


class QuadraticHead(nn.Module):
    """f[B, F] -> (a.f + a0)(b.f + b0) + c.f^2 + c0 [B] (Li et al. 2019)."""

    def __init__(self, features: int):
        super().__init__()
        self.factors = nn.Linear(features, 2, device="meta")
        self.squares = nn.Linear(features, 1, device="meta")

    def forward(self, f: Tensor) -> Tensor:
        left, right = self.factors(f).unbind(-1)
        return left * right + self.squares(f.square()).squeeze(-1)


class DeepEnergy(Separable):
    """The deep EBLVM: `ResNet` features under a `CoupledHead`."""

    def initial(self, key: Key) -> Params:
        """Draw every weight and bias uniform in +-1/sqrt(fan in); convolutions in the memory order of the images."""
        drawn = fan_in_uniform(self, key, Purpose.INIT_THETA)
        assert isinstance(self.feature_net, ResNet)
        if not self.feature_net.channels_last:
            return drawn
        return {k: p.contiguous(memory_format=torch.channels_last) if p.dim() == 4 else p for k, p in drawn.items()}


class DeepEBM(DeepEnergy):
    """The fully visible EBM with the same features: its energy is its free energy, and h is ignored."""

    def free_energy(self, v: Tensor) -> Tensor:
        return self.head_net(self.feature_net(v))
