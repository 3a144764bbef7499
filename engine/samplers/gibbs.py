"""Block Gibbs sampling of a GRBM: h ~ p(h|v), v ~ p(v|h)."""

from collections.abc import Callable
from typing import Any

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
    energy: GRBM, theta: Params, key: Key, v: Tensor, steps: int, on_step: Callable[[int], None] | None = None
) -> tuple[Tensor, Tensor]:
    """`steps` sweeps of chains that start at v [count, D]. Gives (samples, means of their last p(v|h)).

    Sweep i uses the noise of step key.step + i.
    """
    mean = v
    place: dict[str, Any] = {"dtype": v.dtype, "device": v.device}
    for i in range(steps):
        step_key = Key(key.seed, key.step + i)
        uniform_h = philox.uniform(step_key, purpose(Purpose.SAMPLE_H), len(v), (energy.latent,), **place)
        normal_v = philox.normal(step_key, purpose(Purpose.SAMPLE_V), len(v), (energy.visible,), **place)
        v, mean = gibbs_step(energy, theta, v, uniform_h, normal_v)
        if on_step is not None:
            on_step(i)
    return v, mean


def uniform_start(key: Key, count: int, data: Tensor) -> Tensor:
    """Chains uniform over each visible unit's range in the data. (From N(b, sigma^2) they can stay in a spurious mode:
    they do on Frey face.)"""
    low, high = data.amin(0), data.amax(0)
    u = philox.uniform(key, purpose(Purpose.SAMPLE_V, 1), count, (data.shape[1],), dtype=data.dtype, device=data.device)
    return low + (high - low) * u
