"""Block Gibbs sampling of a GRBM: h ~ p(h|v), v ~ p(v|h)."""

from collections.abc import Callable

import torch
from torch import Tensor

from eblvm.engine.models.energy import Params, call
from eblvm.engine.models.grbm import GRBM
from eblvm.kernels import philox
from eblvm.kernels.philox import Key, Purpose, purpose


def gibbs_step(energy: GRBM, theta: Params, v: Tensor, uniform_h: Tensor, normal_v: Tensor) -> tuple[Tensor, Tensor]:
    """One sweep, (v, noise) -> (v, mean of p(v|h)). `uniform_h` [B, H] decides h, `normal_v` [B, D] moves v."""
    h = (uniform_h < torch.sigmoid(call(energy, theta, "posterior_logits", v))).to(v.dtype)
    mean, sigma = call(energy, theta, "conditional_v", h)
    return mean + sigma * normal_v, mean


def gibbs(
    energy: GRBM,
    theta: Params,
    key: Key,
    count: int,
    steps: int,
    *,
    dtype: torch.dtype = torch.float32,
    on_step: Callable[[int], None] | None = None,
) -> tuple[Tensor, Tensor]:
    """`count` chains of `steps` sweeps from v ~ N(b, sigma^2). Gives (samples, means of their last p(v|h)).

    Key.step of `key` is the chain's first step: sweep i uses the noise of step key.step + i.
    """
    v = philox.normal(key, purpose(Purpose.SAMPLE_V, 1), count, (energy.visible,), dtype=dtype)
    v = mean = theta["b"] + torch.exp(theta["log_sigma"]) * v
    for i in range(steps):
        step_key = Key(key.seed, key.step + i)
        uniform_h = philox.uniform(step_key, purpose(Purpose.SAMPLE_H), count, (energy.latent,), dtype=dtype)
        normal_v = philox.normal(step_key, purpose(Purpose.SAMPLE_V), count, (energy.visible,), dtype=dtype)
        v, mean = gibbs_step(energy, theta, v, uniform_h, normal_v)
        if on_step is not None:
            on_step(i)
    return v, mean
