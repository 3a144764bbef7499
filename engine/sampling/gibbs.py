"""Block Gibbs sampling of a GRBM: h ~ p(h|v), v ~ p(v|h). The sweeps themselves are `kernels/gibbs`."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from eblvm.engine.errors import UserError
from eblvm.engine.nets import grbm
from eblvm.engine.options import option
from eblvm.engine.progress import progress
from eblvm.engine.sampling.base import MOST_STEPS, Sampler, Samples
from eblvm.engine.types import Params
from eblvm.kernels import gibbs as kernel
from eblvm.kernels import philox

if TYPE_CHECKING:
    from eblvm.engine.runs.saved import SavedRun
    from eblvm.engine.sampling.mixing import Mixing

SWEEPS = 1000  # as the papers run
CHUNK = 50  # sweeps between two reports of progress
MIXING_CHAINS = 32  # from each start
MIXING_TEMPERATURES = 500  # of the annealed and the tempered ones
MIXING_SEED = 2**43  # added to the samples': these chains are others


class Gibbs(Sampler):
    """Sweeps of chains that start uniform over the data; of images the means of the last p(v|h), as is usual."""

    kind = "gibbs"
    automatic = quick = True

    steps: int = option(SWEEPS, "Gibbs sweeps", low=0, high=MOST_STEPS)
    target: str = option("marginal", "what is sampled: marginal, p(v)")

    def suits(self, run: SavedRun) -> str:
        if run.is_grbm:
            return ""
        return f"Gibbs sweeps are for a GRBM, got model {run.config.model.kind!r}; remove --sampler"

    @property
    def work(self) -> str:
        return f" of {self.steps} Gibbs sweeps"

    def draw(self, run: SavedRun, model: str, count: int, seed: int, first: int, total: int) -> Samples:
        if self.target != "marginal":
            told = f"got kind {self.target!r}; remove --kind"
            raise UserError(f"a GRBM is sampled from its marginal by Gibbs sweeps, {told}")
        theta, key = run.thetas(model)[0], philox.Key(seed, 0)
        start = uniform_start(key, count, run.extent, first)
        with progress(self.steps, "Gibbs", "sweep") as bar:
            v, mean = gibbs(theta, key, start, self.steps, bar.update, first)
        return Samples(v if run.image_shape is None else mean)

    def mixing(self, run: SavedRun, model: str, seed: int) -> Mixing:
        """Of the first replica: chains at noise, at the data, and annealed and tempered ones."""
        from eblvm.engine.sampling import annealing, mixing

        theta, key = run.thetas(model)[0], philox.Key((seed + MIXING_SEED) % 2**63, 0)
        ends = annealing.annealed(theta, key, MIXING_CHAINS, MIXING_TEMPERATURES)
        starts = {"noise": uniform_start(key, MIXING_CHAINS, run.dataset.train)}
        starts |= mixing.several_starts(theta, run.dataset.train, ends, key, MIXING_CHAINS, MIXING_TEMPERATURES)
        return mixing.mixing(run.grbm, theta, starts, key, self.steps)


def gibbs(
    theta: Params,
    key: philox.Key,
    v: torch.Tensor,
    steps: int,
    on_sweeps: Callable[[int], object] | None = None,
    first: int = 0,
) -> tuple[torch.Tensor, torch.Tensor]:
    """`steps` sweeps of chains first, first + 1, ... from v [count, D]: (samples, means of their last p(v|h)).

    Sweep i uses the noise of step key.step + i. `on_sweeps` is called every few sweeps with their number."""
    streams = philox.purpose(philox.Purpose.SAMPLE_H), philox.purpose(philox.Purpose.SAMPLE_V)
    mean = v
    for done in range(0, steps, CHUNK):
        count = min(CHUNK, steps - done)
        noise = kernel.Stream(philox.Key(key.seed, key.step + done), *streams, first)
        v, mean = grbm.sweep(theta, v, noise, count)
        if on_sweeps is not None:
            on_sweeps(count)
    return v, mean


def uniform_start(key: philox.Key, count: int, data: torch.Tensor, first: int = 0) -> torch.Tensor:
    """Chains first, first + 1, ... uniform over each unit's range in the data. (From N(b, sigma^2) they can stay
    in a spurious mode: they do on Frey face.)"""
    low, high = data.amin(0), data.amax(0)
    kwargs: dict[str, Any] = {"first": first, "dtype": data.dtype, "device": data.device}
    u = philox.uniform(key, philox.purpose(philox.Purpose.SAMPLE_V, 1), count, (data.shape[1],), **kwargs)
    return low + (high - low) * u
