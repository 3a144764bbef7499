"""Spectral normalisation (Miyato et al. 2018) as a pure function of a weight W and a vector u:

    W / sigma,   sigma(W; u) = |W^T u|,   W as a matrix [outputs, the rest]

With u the first left singular vector sigma is W's spectral norm, and its derivative u v^T, v = W^T u / |W^T u|, is the
one that the usual form with two constant vectors has. u is no parameter: it is a buffer that `power_iteration` moves.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from eblvm.engine.autodiff.mixed_precision import full_precision
from eblvm.engine.types import Params

VECTOR = "u"  # the buffer's name in its layer
EPS = 1e-12


class Spectral(nn.Module):
    """x -> (W / sigma(W; u)) x + b: a linear layer, or with a kernel size a convolution."""

    u: Tensor

    def __init__(self, inputs: int, outputs: int, kernel: int = 0, stride: int = 1, padding: int = 0):
        super().__init__()
        self.kernel, self.stride, self.padding = kernel, stride, padding
        shape = (outputs, inputs, *[kernel] * 2) if kernel else (outputs, inputs)
        self.weight = nn.Parameter(torch.empty(shape, device="meta"))
        self.bias = nn.Parameter(torch.empty(outputs, device="meta"))
        self.register_buffer(VECTOR, torch.empty(outputs, device="meta"))

    def forward(self, x: Tensor) -> Tensor:
        with full_precision(self.weight):
            w = self.weight / torch.linalg.vector_norm(self.u @ self.weight.flatten(1)).clamp_min(EPS)
        if not self.kernel:
            return F.linear(x, w, self.bias)
        return F.conv2d(x, w, self.bias, self.stride, self.padding)


def for_passes(params: Params, buffers: Params, prefix: str, count: int) -> list[Params]:
    """The buffers of `count` passes of the net under `prefix` in turn, each after a power iteration of its own."""
    found = []
    for _ in range(count):
        own = {name: u for name, u in buffers.items() if name.startswith(prefix)}
        buffers = buffers | power_iteration(params, own)
        found.append(buffers)
    return found


def power_iteration(params: Params, buffers: Params) -> Params:
    """u <- W v / |W v| with v = W^T u / |W^T u|, for the vectors among `buffers`; the others stay. No gradients."""
    moved = dict(buffers)
    with torch.no_grad():
        for name, u in buffers.items():
            if name.rpartition(".")[2] == VECTOR:
                w = params[name.removesuffix(VECTOR) + "weight"].detach().flatten(1)
                moved[name] = F.normalize(w @ F.normalize(u @ w, dim=0, eps=EPS), dim=0, eps=EPS)
    return moved
