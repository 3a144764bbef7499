"""Batch normalisation without side effects: a training pass gives the statistics of its batch beside its result.

The running statistics are buffers that evaluation reads; `blended` moves them, once for every pass that is to count.
With several processes the batch is that of all of them, in value and in every derivative.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from eblvm.engine.autodiff import collectives
from eblvm.engine.types import Params

EPS, MOMENTUM = 1e-5, 0.1
STATISTICS = ("mean", "var")

Seen = list[Tensor]  # mean and unbiased variance of every layer of a pass, in the order of the layers


class Tracked(nn.Module):
    """A module whose forward(x, seen) appends what its batch norms saw to `seen`; None stands for evaluation."""


class BatchNorm(Tracked):
    """(x - mean) / sqrt(var + eps) * weight + bias, mean and var of the batch [B, C, ...], or the running ones."""

    mean: Tensor
    var: Tensor

    def __init__(self, channels: int):
        super().__init__()
        self.weight, self.bias = (nn.Parameter(torch.empty(channels, device="meta")) for _ in range(2))
        for name in STATISTICS:
            self.register_buffer(name, torch.empty(channels, device="meta"))

    def forward(self, x: Tensor, seen: Seen | None) -> Tensor:
        if seen is None:
            return F.batch_norm(x, self.mean, self.var, self.weight, self.bias, eps=EPS)
        y, mean, inverse_std = self._over_ranks(x) if collectives.size() > 1 else self._here(x)
        count = collectives.size() * x.numel() // x.shape[1]
        seen += [mean.detach(), (inverse_std.detach() ** -2 - EPS) * (count / max(1, count - 1))]
        return y

    def _here(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """(y, mean [C], 1 / sqrt(var + eps) [C])"""
        return torch.native_batch_norm(x, self.weight, self.bias, None, None, True, 0.0, EPS)

    def _over_ranks(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The same for the batch of all processes."""
        axes, shape = (0, *range(2, x.dim())), (-1, *[1] * (x.dim() - 2))
        mean = collectives.differentiable_mean(x.mean(axes))
        centred = x - mean.view(shape)
        inverse_std = torch.rsqrt(collectives.differentiable_mean(centred.square().mean(axes)) + EPS)
        y = centred * (inverse_std * self.weight).view(shape) + self.bias.view(shape)
        return y, mean, inverse_std


class Sequence(Tracked):
    """Modules one after the other, tracked ones and others."""

    def __init__(self, *modules: nn.Module):
        super().__init__()
        for i, module in enumerate(modules):
            self.add_module(str(i), module)

    def forward(self, x: Tensor, seen: Seen | None) -> Tensor:
        for module in self.children():
            x = module(x, seen) if isinstance(module, Tracked) else module(x)
        return x


def blended(buffers: Params, prefix: str, module: nn.Module, seen: Seen) -> Params:
    """`buffers` with the running statistics of `module`, named with a prefix, moved towards what a pass saw."""
    names = [name for name, _ in module.named_buffers() if name.rpartition(".")[2] in STATISTICS]
    passed = {prefix + name: new for name, new in zip(names, seen, strict=True)}
    return buffers | {name: torch.lerp(buffers[name], new, MOMENTUM) for name, new in passed.items()}
