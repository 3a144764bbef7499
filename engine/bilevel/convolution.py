"""A 2-D convolution whose derivatives of both orders are a library's own passes: forward, to the input, to the weight.

torch gets the second ones from convolutions of transposed views, and copies whole images for them, twice. Here the
input's gradient, g -> (dy/dx)^T g, is a Function of its own, bilinear in g and w: its derivatives at a cotangent t are
the convolution of t by w and the weight gradient for the image t.
"""

from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import handle_torch_function, has_torch_function

from eblvm.engine.bilevel.derivatives import inside_torch_func, visited

Pair = tuple[int, int]


def convolve(x: Tensor, w: Tensor, bias: Tensor | None, stride: Pair, padding: Pair) -> Tensor:
    """F.conv2d(x[B, I, ., .], w[O, I, ., .], bias, stride, padding), differentiable any number of times."""
    if inside_torch_func():
        return F.conv2d(x, w, bias, stride, padding)
    if has_torch_function((x, w)):
        return handle_torch_function(convolve, (x, w), x, w, bias, stride, padding)
    if not x.is_meta and torch.is_autocast_enabled(x.device.type):
        dtype = torch.get_autocast_dtype(x.device.type)
        x, w, bias = x.to(dtype), w.to(dtype), None if bias is None else bias.to(dtype)
    return _Convolve.apply(x, w, bias, stride, padding)


class Convolution(nn.Conv2d):
    """nn.Conv2d by `convolve`, for zero padding, one group and no dilation."""

    def forward(self, x: Tensor) -> Tensor:
        return convolve(x, self.weight, self.bias, cast(Pair, self.stride), cast(Pair, self.padding))


class _Convolve(torch.autograd.Function):
    generate_vmap_rule = True  # for backward passes that are batched; their graph would be lost without

    @staticmethod
    def forward(x: Tensor, w: Tensor, bias: Tensor | None, stride: Pair, padding: Pair) -> Tensor:
        return F.conv2d(x, w, bias, stride, padding)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        x, w, _, *ctx.place = inputs
        ctx.save_for_backward(x, w)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        x, w = ctx.saved_tensors
        x_wanted, w_wanted, bias_wanted = _wanted(ctx, 3)
        dx = _InputGradient.apply(g, w, x.detach(), *ctx.place) if x_wanted else None
        dw = _backward(1, g, x, w, *ctx.place) if w_wanted else None
        return dx, dw, g.sum((0, 2, 3)) if bias_wanted else None, None, None


class _InputGradient(torch.autograd.Function):
    """(dy/dx)^T g; of x the shape alone matters."""

    generate_vmap_rule = True

    @staticmethod
    def forward(g: Tensor, w: Tensor, x: Tensor, stride: Pair, padding: Pair) -> Tensor:
        return _backward(0, g, x, w, stride, padding)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        g, w, _, *ctx.place = inputs
        ctx.save_for_backward(g, w)

    @staticmethod
    def backward(ctx: Any, t: Tensor) -> tuple[Tensor | None, ...]:
        g, w = ctx.saved_tensors
        g_wanted, w_wanted = _wanted(ctx, 2)
        dg = convolve(t, w, None, *ctx.place) if g_wanted else None
        dw = _backward(1, g, t, w, *ctx.place) if w_wanted else None
        return dg, dw, None, None, None


def _wanted(ctx: Any, number: int) -> list[bool]:
    """Which of a Function's first arguments the running backward pass needs the gradient of."""
    nodes = [node for node, _ in ctx.next_functions] + [None]  # none for a bias that is not there
    return [needed and visited(node) for needed, node in zip(ctx.needs_input_grad[:number], nodes, strict=False)]


def _backward(wanted: int, g: Tensor, x: Tensor, w: Tensor, stride: Pair, padding: Pair) -> Tensor:
    """The gradient to the input (0) or the weight (1) by the library."""
    mask = [wanted == i for i in range(3)]
    found = torch.ops.aten.convolution_backward(g, x, w, None, stride, padding, (1, 1), False, (0, 0), 1, mask)
    return cast(Tensor, found[wanted])
