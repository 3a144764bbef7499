"""Batch normalisation without side effects: a training pass returns its result and the statistics of its batch.

The running statistics are buffers that evaluation reads; `blended` updates them, once for every pass that counts.
With several processes the batch is that of all of them, in value and in every derivative. A pass over a chunk of a
batch gets the statistics of the whole (`Known`, computed by chunks.py). Statistics of 16-bit images have 32 bits.
"""

from functools import partial
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from eblvm.engine.autodiff import collectives
from eblvm.engine.autodiff.checkpointing import checkpointed
from eblvm.engine.autodiff.derivatives import forward_mode
from eblvm.engine.autodiff.mixed_precision import HALVES, autocast
from eblvm.engine.types import Params

EPS, MOMENTUM = 1e-5, 0.1
STATISTICS = ("mean", "var")

Seen = list[Tensor]  # mean and unbiased variance of every layer of a pass, in the order of the layers


class Statistics(NamedTuple):
    """Mean and (biased) variance [C] of a layer's inputs over a whole batch."""

    mean: Tensor
    var: Tensor


class UnknownStatisticsError(Exception):
    """Raised at the first batch norm whose statistics are not known yet; `x` is its input."""

    def __init__(self, x: Tensor):
        super().__init__()
        self.x = x


class Known:
    """The statistics for a pass over a chunk: those of the whole batch, in the order of the layers."""

    def __init__(self, statistics: list[Statistics]):
        self._left = list(statistics)

    def next(self, x: Tensor) -> Statistics:
        if not self._left:
            raise UnknownStatisticsError(x)
        return self._left.pop(0)


class Tracked(nn.Module):
    """A module whose forward(x, seen) appends the statistics of its batch norms to `seen`; None means evaluation."""


class BatchNorm(Tracked):
    """(x - mean) / sqrt(var + eps) * weight + bias, mean and var of the batch [B, C, ...], or the running ones."""

    mean: Tensor
    var: Tensor

    def __init__(self, channels: int):
        super().__init__()
        self.weight, self.bias = (nn.Parameter(torch.empty(channels, device="meta")) for _ in range(2))
        for name in STATISTICS:
            self.register_buffer(name, torch.empty(channels, device="meta"))

    def forward(self, x: Tensor, seen: Seen | Known | None) -> Tensor:
        if seen is None:
            return F.batch_norm(x, self.mean, self.var, self.weight, self.bias, eps=EPS)
        if isinstance(seen, Known):
            mean, var = seen.next(x)
            return self._normalised(x - mean.view(by_channel(x)), torch.rsqrt(var + EPS)).to(x.dtype)
        if collectives.size() > 1:
            y, mean, inverse_std, total = self._over_ranks(x)
            seen += [mean.detach(), (inverse_std.detach() ** -2 - EPS) * (total / (total - 1).clamp(min=1))]
        else:
            y, mean, inverse_std = torch.native_batch_norm(x, self.weight, self.bias, None, None, True, 0.0, EPS)
            seen += [mean.detach(), unbiased(inverse_std.detach() ** -2 - EPS, x.numel() // x.shape[1])]
        return y

    def _over_ranks(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return (y, mean [C], 1 / sqrt(var + eps) [C], the number of elements of a channel) for the batch of all
        processes, by one collective: every rank sends its count, mean and variance, and combines all ranks' (Chan et
        al. 1979), without cancellation."""
        axes, wide = all_but_channels(x), x.to(self.weight.dtype)
        own_var, own_mean = torch.var_mean(wide, axes, correction=0)
        count = own_mean.new_full((1,), x.numel() // x.shape[1])
        counts, means, variances = collectives.gathered(torch.cat([count, own_mean, own_var])).split(
            [1, len(own_mean), len(own_mean)], 1
        )
        total = counts.sum()
        weight = counts / total
        mean = (weight * means).sum(0)
        var = (weight * (variances + (means - mean).square())).sum(0)
        inverse_std = torch.rsqrt(var + EPS)
        return self._normalised(wide - mean.view(by_channel(x)), inverse_std).to(x.dtype), mean, inverse_std, total

    def _normalised(self, centred: Tensor, inverse_std: Tensor) -> Tensor:
        shape = by_channel(centred)
        return centred * (inverse_std * self.weight).view(shape) + self.bias.view(shape)


def all_but_channels(x: Tensor) -> tuple[int, ...]:
    return (0, *range(2, x.dim()))


def by_channel(x: Tensor) -> tuple[int, ...]:
    return (-1, *[1] * (x.dim() - 2))


def unbiased(var: Tensor, count: int) -> Tensor:
    return var * (count / max(1, count - 1))


class Sequence(Tracked):
    """Modules one after the other, tracked ones and others.

    If `rebuilds` is set, each group of `stage` modules keeps only its input and is rebuilt in backward
    (autodiff/checkpointing.py); the first of a group must not work in place. Passes with `Known` statistics are not
    rebuilt: these have derivatives of their own."""

    rebuilds = False
    precision = "fp32"
    channels_last = False

    def __init__(self, *modules: nn.Module, stage: int = 0):
        super().__init__()
        self.stage = stage
        for i, module in enumerate(modules):
            self.add_module(str(i), module)

    def forward(self, x: Tensor, seen: Seen | Known | None) -> Tensor:
        if self.channels_last and x.dim() == 4:
            x = x.contiguous(memory_format=torch.channels_last)
        if self.precision not in HALVES:
            return self._through(x, seen)
        with autocast(x, self.precision):
            return self._through(x, seen).to(x.dtype)

    def _through(self, x: Tensor, seen: Seen | Known | None) -> Tensor:
        modules = list(self.children())
        rebuilds = self.rebuilds and self.stage and torch.is_grad_enabled() and not forward_mode()
        if not rebuilds or not isinstance(seen, list):
            for module in modules:
                x = module(x, seen) if isinstance(module, Tracked) else module(x)
            return x
        for first in range(0, len(modules), self.stage):
            stage = Sequence(*modules[first : first + self.stage])
            if next(stage.parameters(), None) is None:
                x = stage(x, seen)
            else:
                x = checkpointed(stage, x, partial(autocast, x, self.precision), seen)
        return x


def blended(buffers: Params, prefix: str, module: nn.Module, seen: Seen) -> Params:
    """Return `buffers`, with the running statistics of `module` (named with a prefix) moved towards those of a pass."""
    names = [name for name, _ in module.named_buffers() if name.rpartition(".")[2] in STATISTICS]
    passed = {prefix + name: new for name, new in zip(names, seen, strict=True)}
    return buffers | {name: torch.lerp(buffers[name], new, MOMENTUM) for name, new in passed.items()}
