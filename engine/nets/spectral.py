"""Spectral normalisation (Miyato et al. 2018) as a pure function of a weight W and a vector u:

    W / sigma,   sigma(W; u) = |W^T u|,   W as a matrix [outputs, the rest]

If u is the first left singular vector, sigma is W's spectral norm, and its derivative u v^T, v = W^T u / |W^T u|, is
that of the usual form with two constant vectors. u is not a parameter but a buffer that `power_iteration` updates.
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
    """Return the buffers of `count` successive passes of the net under `prefix`, each after its own power iteration."""
    by_pass = []
    for _ in range(count):
        own = {name: u for name, u in buffers.items() if name.startswith(prefix)}
        buffers = buffers | power_iteration(params, own)
        by_pass.append(buffers)
    return by_pass


def power_iteration(params: Params, buffers: Params) -> Params:
    """Update u <- W v / |W v|, v = W^T u / |W^T u|, for the vectors in `buffers`; the others stay. No gradients."""
    moved = dict(buffers)
    with torch.no_grad():
        for name, u in buffers.items():
            if name.rpartition(".")[2] == VECTOR:
                w = params[name.removesuffix(VECTOR) + "weight"].detach().flatten(1)
                moved[name] = F.normalize(w @ F.normalize(u @ w, dim=0, eps=EPS), dim=0, eps=EPS)
    return moved
