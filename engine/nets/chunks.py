"""A net over chunks of its batch, with the memory of a chunk, and the result and derivatives of the whole batch.

Samples interact only in batch norms. Given the statistics s_1, ..., s_d of the whole batch, a net is a function of
single samples, y = f(x, s), and s_l is the mean over samples of a function S_l of x and of s_1, ..., s_{l-1}. This
triangular system is solved forwards for the values and backwards for the cotangents (F: a pass of the net):

    values      s_l = mean S_l(x; s_1 .. s_{l-1}) for l = 1 .. d, then y: d + 1 passes, each as far as its layer
    cotangents  that of y to x, the parameters and every s_l; then for l = d .. 1 that of s_l, which is complete by
                then, to x, the parameters and s_1 .. s_{l-1}: d + 1 passes with their backward

so at most 4 (d + 1) F, compared with 3 F for the whole batch at once; without batch norms (d = 0) one pass more. Only x
is kept. The second derivative, that of an unrolled step, is the forward-mode derivative of all of this: the gradient of
<g, y> is a function of the inputs, and a cotangent t of that gradient becomes its derivative along t. With several
processes every s_l, and every cotangent of one, is the mean over them, as in autodiff/collectives.py.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.func import functional_call

from eblvm.engine.autodiff import collectives
from eblvm.engine.autodiff.checkpointing import wanted_inputs
from eblvm.engine.autodiff.derivatives import inside_torch_func
from eblvm.engine.nets.batch_norm import (
    BatchNorm,
    Known,
    Seen,
    Sequence,
    Statistics,
    UnknownStatisticsError,
    all_but_channels,
    by_channel,
    unbiased,
)

Inputs = list[Tensor] | tuple[Tensor, ...]  # x, then the tensors of the net


def chunked(net: Sequence, x: Tensor, seen: Seen, size: int) -> Tensor:
    """Return net(x, seen), computed over chunks of at most `size` samples of x [B, ...]."""
    if inside_torch_func():
        raise RuntimeError("micro-batches run in plain autograd; remove --micro-batch, or --compile and --replicas")
    tensors = dict(net.named_parameters()) | dict(net.named_buffers())
    layers = sum(isinstance(module, BatchNorm) for module in net.modules())
    y, *statistics = _Chunked.apply(Chunks(net, tuple(tensors), layers, size), x, *tensors.values())
    seen += statistics
    return y


class Chunks(NamedTuple):
    """A net with names for its tensors, its number of batch norms, and the size of a chunk."""

    net: Sequence
    names: tuple[str, ...]
    layers: int
    size: int

    def of(self, inputs: Inputs, statistics: list[Statistics]) -> Tensor:
        x, *tensors = inputs
        seen: Seen | Known = Known(statistics) if self.layers else []
        return functional_call(self.net, dict(zip(self.names, tensors, strict=True)), (x, seen))

    def moments(self, inputs: Inputs, statistics: list[Statistics], centre: Tensor | None = None) -> tuple[Tensor, int]:
        """Return moments of the inputs of the first layer without statistics over a chunk: their mean and mean squared
        distance from `centre` (None: from the mean) [2, C], and their pixels per sample."""
        try:
            self.of(inputs, statistics)
        except UnknownStatisticsError as reached:
            x = reached.x
        x = x.to(torch.promote_types(x.dtype, torch.float32))
        mean = x.mean(all_but_channels(x))
        distance = x - (mean if centre is None else centre).view(by_channel(x))
        return torch.stack([mean, distance.square().mean(all_but_channels(x))]), x[0, 0].numel()

    def split(self, inputs: Inputs) -> Iterator[tuple[slice, list[Tensor], float]]:
        """Yield (rows, inputs, fraction of the batch) of every chunk."""
        x, *tensors = inputs
        for first in range(0, len(x), self.size):
            rows = slice(first, min(first + self.size, len(x)))
            yield rows, [x[rows], *tensors], (rows.stop - first) / len(x)

    @torch.no_grad()
    def statistics(self, inputs: Inputs) -> tuple[list[Statistics], Seen]:
        """Return the statistics of every layer over the whole batch, and the same as a pass appends them to `seen`."""
        statistics: list[Statistics] = []
        seen: Seen = []
        for _ in range(self.layers):
            parts = [(weight, *self.moments(chunk, statistics)) for _, chunk, weight in self.split(inputs)]
            mean = mean_over_ranks(torch.stack([weight * m[0] for weight, m, _ in parts]).sum(0))
            spread = [weight * (m[1] + (m[0] - mean).square()) for weight, m, _ in parts]
            var = mean_over_ranks(torch.stack(spread).sum(0))
            statistics.append(Statistics(mean, var))
            seen += [mean, unbiased(var, collectives.size() * len(inputs[0]) * parts[0][2])]
        return statistics, seen

    @torch.no_grad()
    def forward(self, inputs: Inputs, statistics: list[Statistics]) -> Tensor:
        return torch.cat([self.of(chunk, statistics) for _, chunk, _ in self.split(inputs)])

    def pull(self, g: Tensor, inputs: Inputs, statistics: list[Statistics], wanted: list[bool]) -> list[Tensor]:
        """Return the gradients of <g, y> for the wanted inputs."""
        slopes = [torch.zeros(())] * 2 * self.layers  # of means and variances, in the order of the layers
        totals: list[Tensor] = []
        for layer in reversed(range(self.layers + 1)):
            bar = None if layer == self.layers else mean_over_ranks(torch.stack(slopes[2 * layer :]))
            of_x, of_others = [], None
            for rows, chunk, weight in self.split(inputs):
                with torch.enable_grad():
                    at = [leaf(t) if w else t for t, w in zip(chunk, wanted, strict=True)]
                    known = [Statistics(leaf(mean), leaf(var)) for mean, var in statistics[:layer]]
                    if bar is None:
                        value, cotangent = self.of(at, known), g[rows]
                    else:  # the variance has no derivative in the mean: the mean distance from it is zero
                        value, cotangent = self.moments(at, known, statistics[layer].mean)[0], weight * bar
                    asked = [t for t, w in zip(at, wanted, strict=True) if w]
                    asked += [t for pair in known for t in pair]
                    of_chunk = list(
                        torch.autograd.grad(value, asked, cotangent, allow_unused=True, materialize_grads=True)
                    )
                of_x += [of_chunk.pop(0)] if wanted[0] else []
                of_others = of_chunk if of_others is None else [a + b for a, b in zip(of_others, of_chunk, strict=True)]
            assert of_others is not None
            gradients = [torch.cat(of_x)] if wanted[0] else []
            gradients += of_others[: len(of_others) - 2 * layer]
            totals = [a + b for a, b in zip(totals, gradients, strict=True)] if totals else gradients
            slopes = [a + b for a, b in zip(slopes, of_others[len(of_others) - 2 * layer :], strict=False)]
        return totals


def leaf(t: Tensor) -> Tensor:
    """Return t as a leaf of a new graph, with its tangent."""
    primal, tangent = forward_ad.unpack_dual(t)
    primal = primal.detach().requires_grad_()
    return primal if tangent is None else forward_ad.make_dual(primal, tangent)


def mean_over_ranks(t: Tensor) -> Tensor:
    """Return the mean of t over ranks, with the mean of its tangent."""
    if collectives.size() == 1:
        return t
    primal, tangent = forward_ad.unpack_dual(t)
    primal = collectives.mean(primal)
    return primal if tangent is None else forward_ad.make_dual(primal, collectives.mean(tangent))


class _Chunked(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, chunks: Chunks, *inputs: Tensor) -> tuple[Tensor, ...]:
        ctx.chunks = chunks
        ctx.statistics, seen = chunks.statistics(inputs)
        ctx.save_for_backward(*inputs)
        ctx.mark_non_differentiable(*seen)
        return chunks.forward(inputs, ctx.statistics), *seen

    @staticmethod
    def backward(ctx: Any, g: Tensor, *_: Any) -> tuple[Tensor | None, ...]:
        wanted = wanted_inputs(ctx, len(ctx.saved_tensors))
        if torch.is_grad_enabled():
            gradients = iter(_Pull.apply(ctx.chunks, ctx.statistics, wanted, g, *ctx.saved_tensors))
        else:
            gradients = iter(ctx.chunks.pull(g, ctx.saved_tensors, ctx.statistics, wanted))
        return None, *(next(gradients) if w else None for w in wanted)


class _Pull(torch.autograd.Function):
    """The gradients of <g, y>, differentiable once, by forward mode over backward."""

    @staticmethod
    def forward(
        ctx: Any, chunks: Chunks, statistics: list[Statistics], wanted: list[bool], g: Tensor, *inputs: Tensor
    ) -> tuple[Tensor, ...]:
        ctx.chunks, ctx.wanted = chunks, wanted
        ctx.save_for_backward(g, *inputs)
        return tuple(chunks.pull(g, inputs, statistics, wanted))

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor) -> tuple[Tensor | None, ...]:
        if torch.is_grad_enabled():
            raise RuntimeError("micro-batches have no third derivative; remove --micro-batch")
        g, *inputs = ctx.saved_tensors
        g_needed, *needed = ctx.needs_input_grad[3:]
        along = iter(cotangents)
        with forward_ad.dual_level():
            duals = [
                forward_ad.make_dual(t.detach(), next(along).contiguous()) if w else t.detach()
                for t, w in zip(inputs, ctx.wanted, strict=True)
            ]
            statistics, _ = ctx.chunks.statistics(duals)
            y = ctx.chunks.forward(duals, statistics) if g_needed else None
            gradients = iter(ctx.chunks.pull(g.detach(), duals, statistics, list(needed)))
            tangents = [forward_ad.unpack_dual(next(gradients)).tangent if n else None for n in needed]
            return None, None, None, None if y is None else forward_ad.unpack_dual(y).tangent, *tangents
