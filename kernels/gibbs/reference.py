"""The specification of block Gibbs sweeps on a GRBM, in plain torch ops. Shape tags: B chains, D visible, H latent.

    h = 1[u < sigmoid(v W + c)],   mean = b + sigma^2 (h W^T),   v' = mean + sigma n

with u uniform and n standard normal: a function of `uniform_h` and `normal_v`, or of a Philox seed.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from eblvm.kernels import philox
from eblvm.kernels.philox import Key


def sweep(
    v: Tensor, W: Tensor, b: Tensor, c: Tensor, log_sigma: Tensor, uniform_h: Tensor, normal_v: Tensor
) -> tuple[Tensor, Tensor]:
    """(v', mean), both [..., B, D]."""
    h = (uniform_h < torch.sigmoid(v @ W + c.unsqueeze(-2))).to(v.dtype)
    sigma = torch.exp(log_sigma).unsqueeze(-2)
    mean = b.unsqueeze(-2) + sigma.square() * (h @ W.mT)
    return mean + sigma * normal_v, mean


def gibbs(
    v: Tensor,
    W: Tensor,
    b: Tensor,
    c: Tensor,
    log_sigma: Tensor,
    uniforms: Sequence[Tensor],
    normals: Sequence[Tensor],
    seed: Tensor | None,
    step: int,
    purpose_h: int,
    purpose_v: int,
    first: int,
    sweeps: int,
) -> tuple[Tensor, Tensor]:
    """`sweeps` sweeps from v; sweep i reads uniforms[i], normals[i], or draws them from (seed, step + i)."""
    mean = v
    for i in range(sweeps):
        if seed is None:
            u, n = uniforms[i], normals[i]
        else:
            key, count = Key(seed, step + i), v.shape[-2]
            u = philox.uniform(key, purpose_h, count, (W.shape[-1],), first=first, dtype=v.dtype, device=v.device)
            n = philox.normal(key, purpose_v, count, (W.shape[-2],), first=first, dtype=v.dtype, device=v.device)
        v, mean = sweep(v, W, b, c, log_sigma, u, n)
    return v, mean
