"""The specification: ELU of a sum, and its derivatives, in plain torch ops.

s = x + residual + bias;   y = elu(s);   g = g_y elu'(s) + g_s + g_again
"""

import torch
from torch import Tensor

from eblvm.kernels.elu_second_order import reference as elu


def value(
    x: Tensor, residual: Tensor | None, bias: Tensor | None, dtype: torch.dtype | None = None
) -> tuple[Tensor, Tensor]:
    """(s, y) for x [B, C, ...], residual of its shape and bias [C]; y in `dtype` or x's."""
    s = x if residual is None else x + residual
    s = s if bias is None else s + bias.view(-1, *[1] * (x.dim() - 2))
    return s, elu.value(s, 1.0).to(dtype or x.dtype)


def first(g_y: Tensor, g_s: Tensor | None, g_again: Tensor | None, s: Tensor) -> Tensor:
    """The cotangent of the sum, in its type, from that of y and up to two of s."""
    g = elu.first(g_y, s, 1.0)
    for added in (g_s, g_again):
        g = g if added is None else g + added
    return g.to(s.dtype)


def second(u: Tensor, w: Tensor, g_y: Tensor, s: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The transposed Jacobian of `first` on two cotangents u + w: itself for g_s, and those for g_y and s."""
    total = u + w
    of_y, of_s = elu.second(total, g_y, s, 1.0)
    return total, of_y.to(g_y.dtype), of_s.to(s.dtype)
