"""Block Gibbs sampling of a GRBM: h ~ p(h|v), v ~ p(v|h). The sweeps themselves are `kernels/gibbs`."""

from collections.abc import Callable
from typing import Any

from torch import Tensor

from eblvm.engine.nets.grbm import sweep
from eblvm.engine.types import Params
from eblvm.kernels import philox
from eblvm.kernels.gibbs import Stream
from eblvm.kernels.philox import Key, Purpose, purpose

CHUNK = 50  # sweeps between two reports of progress


def gibbs(
    theta: Params, key: Key, v: Tensor, steps: int, on_sweeps: Callable[[int], None] | None = None, first: int = 0
) -> tuple[Tensor, Tensor]:
    """`steps` sweeps of chains first, first + 1, ... that start at v [count, D]. Gives (samples, means of their last
    p(v|h)).

    Sweep i uses the noise of step key.step + i. `on_sweeps` hears of every few sweeps how many they were.
    """
    mean = v
    for done in range(0, steps, CHUNK):
        count = min(CHUNK, steps - done)
        noise = Stream(Key(key.seed, key.step + done), purpose(Purpose.SAMPLE_H), purpose(Purpose.SAMPLE_V), first)
        v, mean = sweep(theta, v, noise, count)
        if on_sweeps is not None:
            on_sweeps(count)
    return v, mean


def uniform_start(key: Key, count: int, data: Tensor, first: int = 0) -> Tensor:
    """Chains first, first + 1, ... uniform over each unit's range in the data. (From N(b, sigma^2) they can stay
    in a spurious mode: they do on Frey face.)"""
    low, high = data.amin(0), data.amax(0)
    kwargs: dict[str, Any] = {"first": first, "dtype": data.dtype, "device": data.device}
    u = philox.uniform(key, purpose(Purpose.SAMPLE_V, 1), count, (data.shape[1],), **kwargs)
    return low + (high - low) * u
