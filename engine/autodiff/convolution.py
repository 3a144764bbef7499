"""A 2-D convolution whose derivatives of both orders are a library's own passes: forward, to the input, to the weight.

torch computes second derivatives by convolutions of transposed views, and copies whole images for them, twice. Here the
input's gradient, g -> (dy/dx)^T g, is a Function of its own, bilinear in g and w: its derivatives at a cotangent t are
the convolution of t by w and the weight gradient for the image t.

A pass is the library's, or a matrix product with the columns of the image if that is faster: on a CPU, for results
of few pixels by a large kernel, which the library would reorder in every pass. The columns exist only during the
product; memory counted on the meta device does not include them.
"""

import math
from collections.abc import Callable, Sequence
from itertools import product
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import handle_torch_function, has_torch_function

from eblvm.engine.autodiff.derivatives import inside_torch_func, visited
from eblvm.kernels.runtime.dispatch import Function

Pair = tuple[int, int]
FEW_PIXELS = 16  # 4 x 4; from 8 x 8 on the library is as fast
MANY_CHANNELS = 512  # in and out; at 256 the library is faster by a quarter, at 1024 it takes twice the time


def convolve(
    x: Tensor, w: Tensor, bias: Tensor | None, stride: Pair, padding: Pair, pulled: Tensor | None = None
) -> Tensor:
    """Return F.conv2d(x[B, I, ., .], w[O, I, ., .], bias, stride, padding), differentiable any number of times.

    `pulled` is another tensor of w's values, which the input's gradient reads instead of w: what the derivative of that
    gradient sends back to the weight arrives there, and nobody adds it to the rest (nets/prepared.py)."""
    if inside_torch_func() and not (_in_graph is not None and torch.compiler.is_compiling()):
        return F.conv2d(x, w, bias, stride, padding)
    if has_torch_function((x, w)):
        return handle_torch_function(convolve, (x, w), x, w, bias, stride, padding)
    if not x.is_meta and torch.is_autocast_enabled(x.device.type):
        dtype = torch.get_autocast_dtype(x.device.type)
        x, w, bias = x.to(dtype), w.to(dtype), None if bias is None else bias.to(dtype)
    if torch.compiler.is_compiling():
        return _in_graph(x, w, bias, stride, padding)  # type: ignore[misc]
    return _Convolve.apply(x, w, bias, stride, padding, pulled)


def keep_in_graphs() -> None:
    """Let `torch.compile` keep convolutions of steps that it compiles from now on, with both of their derivatives.

    The compiler would look into a Function and drop its second derivative. Kept whole, it is traced as it runs, inside
    torch.func's levels. Without this call, convolutions inside compiled code are torch's own."""
    global _in_graph
    if _in_graph is None:
        _in_graph = torch.compiler.allow_in_graph(_whole)


def _whole(x: Tensor, w: Tensor, bias: Tensor | None, stride: Pair, padding: Pair) -> Tensor:
    return _Convolve.apply(x, w, bias, stride, padding, None)


_in_graph: Callable[..., Tensor] | None = None  # `_whole`, once the compiler knows it


class Convolution(nn.Conv2d):
    """nn.Conv2d by `convolve`, for zero padding, one group and no dilation."""

    prepared: tuple[Tensor, Tensor | None] | None = None  # its kernel, and the same for `pulled`

    def kernel(self) -> Tensor:
        return self.weight

    def forward(self, x: Tensor) -> Tensor:
        w, pulled = self.prepared or (self.kernel(), None)
        return convolve(x, w, self.bias, cast(Pair, self.stride), cast(Pair, self.padding), pulled)


class _Convolve(Function):
    generate_vmap_rule = True  # for batched backward passes, whose graph would be lost without it

    @staticmethod
    def forward(
        x: Tensor, w: Tensor, bias: Tensor | None, stride: Pair, padding: Pair, pulled: Tensor | None
    ) -> Tensor:
        size = [(n + 2 * p - k) // d + 1 for n, p, k, d in zip(x.shape[2:], padding, w.shape[2:], stride, strict=False)]
        if x.dim() != 4 or x.shape[1] != w.shape[1] or not _by_products(x, w, size):
            return F.conv2d(x, w, bias, stride, padding)
        y = w.reshape(len(w), -1) @ _columns(x, w, stride, padding)
        y = y if bias is None else y + bias[:, None]
        return _batch_first(y.reshape(len(w), len(x), *size))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        x, w, _, *ctx.place, pulled = inputs
        ctx.save_for_backward(x, w if pulled is None else pulled)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        x, w = ctx.saved_tensors
        x_wanted, w_wanted, bias_wanted = wanted = _wanted(ctx, 3)
        if not torch.is_grad_enabled() and not _by_products(g, w, g.shape[2:]):
            return *_library(wanted, g, x, w, *ctx.place), None, None, None
        dx = _InputGradient.apply(g, w, x.detach(), *ctx.place) if x_wanted else None
        dw = _to_weight(g, x, w, *ctx.place) if w_wanted else None
        return dx, dw, g.sum((0, 2, 3)) if bias_wanted else None, None, None, None


class _InputGradient(Function):
    """(dy/dx)^T g; only the shape of x matters."""

    generate_vmap_rule = True

    @staticmethod
    def forward(g: Tensor, w: Tensor, x: Tensor, stride: Pair, padding: Pair) -> Tensor:
        B, _, rows, columns = g.shape
        if not _by_products(g, w, (rows, columns)):
            return cast(Tensor, _library([True, False, False], g, x, w, stride, padding)[0])
        (height, width), (up, left), (down, right), (inputs, *kernel) = x.shape[2:], padding, stride, w.shape[1:]
        window_gradients = w.reshape(len(w), -1).t() @ g.transpose(0, 1).reshape(len(w), -1)
        window_gradients = window_gradients.reshape(inputs, *kernel, B, rows, columns)
        dx = g.new_zeros(inputs, B, height + 2 * up, width + 2 * left)
        for i, j in product(*map(range, kernel)):
            dx[:, :, i : i + down * rows : down, j : j + right * columns : right] += window_gradients[:, i, j]
        return _batch_first(dx[:, :, up : up + height, left : left + width])

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        g, w, _, *ctx.place = inputs
        ctx.save_for_backward(g, w)

    @staticmethod
    def backward(ctx: Any, t: Tensor) -> tuple[Tensor | None, ...]:
        g, w = ctx.saved_tensors
        g_wanted, w_wanted = _wanted(ctx, 2)
        dg = convolve(t, w, None, *ctx.place) if g_wanted else None
        dw = _to_weight(g, t, w, *ctx.place) if w_wanted else None
        return dg, dw, None, None, None


def _wanted(ctx: Any, number: int) -> list[bool]:
    """Return for which of a Function's first arguments the running backward pass needs the gradient."""
    nodes = [node for node, _ in ctx.next_functions] + [None]  # None for a missing bias
    return [needed and visited(node) for needed, node in zip(ctx.needs_input_grad[:number], nodes, strict=False)]


def _to_weight(g: Tensor, x: Tensor, w: Tensor, stride: Pair, padding: Pair) -> Tensor:
    """Return (dy/dw)^T g."""
    if not _by_products(g, w, g.shape[2:]):
        return cast(Tensor, _library([False, True, False], g, x, w, stride, padding)[1])
    dw = g.transpose(0, 1).reshape(len(w), -1) @ _columns(x, w, stride, padding).t()
    return torch.ops.aten._unsafe_view(dw, w.shape)  # not a view: other gradients are added to it in place


def _library(
    wanted: list[bool], g: Tensor, x: Tensor, w: Tensor, stride: Pair, padding: Pair
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """Return the wanted ones of the gradients to the input, the weight and the bias."""
    place = stride, padding, (1, 1), False, (0, 0), 1
    gradients = torch.ops.aten.convolution_backward.default(g, x, w, [len(w)], *place, wanted)
    return cast(tuple[Tensor | None, Tensor | None, Tensor | None], gradients)


def _by_products(image: Tensor, w: Tensor, size: Sequence[int]) -> bool:
    """Return whether to use matrix products: a large kernel, few pixels, and products as exact as the library."""
    if len(w) * w.shape[1] < MANY_CHANNELS**2 or min(size) < 1 or math.prod(size) > FEW_PIXELS:
        return False
    exact = image.dtype in (torch.float32, torch.float64) and not torch.is_autocast_enabled("cpu")
    return exact and image.is_cpu and w.is_contiguous()


def _batch_first(x: Tensor) -> Tensor:
    """Return x [O, B, ., .] as [B, O, ., .], copied: the result of a Function must not be a view."""
    return x.transpose(0, 1).clone(memory_format=torch.contiguous_format)


def _columns(x: Tensor, w: Tensor, stride: Pair, padding: Pair) -> Tensor:
    """Return [I kh kw, B h w]: for every pixel of the result, the pixels under the kernel."""
    (up, left), (_, _, kh, kw) = padding, w.shape
    windows = F.pad(x.transpose(0, 1), (left, left, up, up)).unfold(2, kh, stride[0]).unfold(3, kw, stride[1])
    return windows.permute(0, 4, 5, 1, 2, 3).reshape(w[0].numel(), -1)
