"""Initial weights of BiDVL's nets, and their initial spectral vectors and batch norm statistics."""

import math
from collections.abc import Callable

import torch
from torch import nn

from eblvm.engine.nets.spectral import power_iteration
from eblvm.engine.types import Params
from eblvm.kernels import philox
from eblvm.kernels.philox import Key, Purpose, purpose

DrawStart = Callable[[nn.Module, Key, Purpose, int], Params]  # (net, key, purpose, its first stream) -> parameters
START_ITERATIONS = 15  # of the power method, before training
NORMAL_STD = 0.02


def xavier(model: nn.Module, key: Key, of: Purpose, first: int) -> Params:
    """Draw weights N(0, 2 / (fan in + fan out)), scales of batch norms 1, biases 0; streams from `first`."""
    drawn: Params = {}
    for name, p in model.named_parameters():
        draw = (key, purpose(of, first + len(drawn)), p.shape[0], tuple(p.shape[1:]))
        if p.dim() > 1:
            fans = (p.shape[0] + p.shape[1]) * math.prod(p.shape[2:])
            drawn[name] = philox.normal(*draw) * math.sqrt(2 / fans)
        else:
            drawn[name] = torch.full_like(philox.uniform(*draw), float(name.endswith("weight")))
    return drawn


def normal(model: nn.Module, key: Key, of: Purpose, first: int) -> Params:
    """Draw the released programs' start: weights N(0, 0.02^2), their biases uniform in +-1/sqrt(fan in); batch norms 1
    and 0; streams from `first`."""
    shapes = {name: p.shape for name, p in model.named_parameters()}
    drawn: Params = {}
    for name, shape in shapes.items():
        draw = (key, purpose(of, first + len(drawn)), shape[0], tuple(shape[1:]))
        weight = shapes[name.removesuffix("bias").removesuffix("weight") + "weight"]
        if len(shape) > 1:
            drawn[name] = NORMAL_STD * philox.normal(*draw)
        elif len(weight) > 1:
            drawn[name] = (2 * philox.uniform(*draw) - 1) / math.sqrt(math.prod(weight[1:]))
        else:
            drawn[name] = torch.full_like(philox.uniform(*draw), float(name.endswith("weight")))
    return drawn


STARTS: dict[str, DrawStart] = {"xavier": xavier, "normal": normal}


def start_buffers(model: nn.Module, params: Params, key: Key, first: int) -> Params:
    """Return spectral vectors after some power iterations from a random direction, running means 0 and variances 1."""
    buffers: Params = {}
    for i, (name, b) in enumerate(model.named_buffers()):
        drawn = philox.normal(key, purpose(Purpose.INIT_THETA, first + i), len(b))
        kind = name.rpartition(".")[2]
        buffers[name] = drawn if kind == "u" else torch.full_like(drawn, float(kind == "var"))
    for _ in range(START_ITERATIONS):
        buffers = power_iteration(params, buffers)
    return buffers
