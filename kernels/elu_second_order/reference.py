"""The specification of ELU with both of its derivatives, in plain torch ops.

y = x for x > 0, else alpha (exp(x) - 1);   y' = 1, else alpha exp(x);   y'' = 0, else alpha exp(x)
"""

import torch
from torch import Tensor


def value(x: Tensor, alpha: float) -> Tensor:
    return torch.where(x > 0, x, alpha * torch.expm1(x.clamp(max=0)))


def first(g: Tensor, x: Tensor, alpha: float) -> Tensor:
    """g y'."""
    return g * torch.where(x > 0, 1.0, alpha * torch.exp(x.clamp(max=0)))


def second(u: Tensor, g: Tensor, x: Tensor, alpha: float) -> tuple[Tensor, Tensor]:
    """The transposed Jacobian of `first` on the cotangent u: u y' for g and u g y'' for x."""
    curve = alpha * torch.exp(x.clamp(max=0))
    return u * torch.where(x > 0, 1.0, curve), u * g * torch.where(x > 0, 0.0, curve)
