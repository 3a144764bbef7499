"""Chains, parameters and noise for the Gibbs kernels; in float64 no decision is close enough for rounding to matter."""

import torch
from torch import Tensor

from eblvm.kernels import philox
from eblvm.kernels.gibbs import Stream
from eblvm.kernels.philox import Key, Purpose
from tests.kernels import grbm_cases
from tests.kernels.grbm_cases import SIZES

__all__ = ["SIZES", "STREAM", "SWEEPS", "by_definition", "drawn", "inputs", "raw", "stream"]
STREAM = Stream(Key(2**40, 7), philox.purpose(Purpose.CHAIN_H), philox.purpose(Purpose.CHAIN_V), 5)
SWEEPS = 3


def inputs(
    size: tuple[int, int, int], dtype: torch.dtype = torch.float64, replicas: tuple[int, ...] = ()
) -> list[Tensor]:
    """v, W, b, c, log_sigma."""
    return grbm_cases.inputs(size, dtype, replicas, W_scale=0.5)[:5]


def stream(replicas: tuple[int, ...] = ()) -> Stream:
    if not replicas:
        return STREAM
    seeds = torch.arange(torch.Size(replicas).numel()).view(replicas) + 2**40
    return STREAM._replace(key=Key(seeds, 7))


def drawn(size: tuple[int, int, int], dtype: torch.dtype, noise: Stream) -> list[tuple[Tensor, Tensor]]:
    B, D, H = size
    pairs = []
    for i in range(SWEEPS):
        key = Key(noise.key.seed, noise.key.step + i)
        u = philox.uniform(key, noise.purpose_h, B, (H,), first=noise.first, dtype=dtype)
        pairs.append((u, philox.normal(key, noise.purpose_v, B, (D,), first=noise.first, dtype=dtype)))
    return pairs


def by_definition(tensors: list[Tensor], pairs: list[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    """One chain, one unit at a time."""
    v, W, b, c, log_sigma = tensors
    v, mean, sigma = v.clone(), v.clone(), log_sigma.exp()
    for u, n in pairs:
        for i in range(v.shape[0]):
            h = torch.stack([(u[i, j] < torch.sigmoid(c[j] + v[i] @ W[:, j])).to(v.dtype) for j in range(W.shape[1])])
            for d in range(v.shape[1]):
                mean[i, d] = b[d] + sigma[d] ** 2 * (W[d] @ h)
            v[i] = mean[i] + sigma * n[i]
    return v, mean


def raw(tensors: list[Tensor], noise: Stream | list[tuple[Tensor, Tensor]]) -> tuple:
    """The arguments of every backend."""
    if isinstance(noise, Stream):
        seed = torch.as_tensor(noise.key.seed)
        return (*tensors, [], [], seed, noise.key.step, noise.purpose_h, noise.purpose_v, noise.first, SWEEPS)
    return (*tensors, [u for u, _ in noise], [n for _, n in noise], None, 0, 0, 0, 0, SWEEPS)
