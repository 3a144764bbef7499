"""Is head slower than base? The median of per-round ratios, with a bootstrap interval.

A round times base and head within a fraction of a second, so what slows the machine for longer cancels in its ratio.
Rounds come in launches: two fresh processes each, since a process keeps the luck of its memory layout for life. The
bootstrap resamples launches, and rounds in them; so neither many rounds of one lucky process nor one disturbed launch
make an interval narrow.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

LEVEL = 0.9  # one end in twenty is beyond the truth by chance; that it repeats, one in 400
RESAMPLED = 1000
TIME_ALLOWED = 0.01  # time fails if the whole interval is above 1 + this, in two blocks of fresh processes


class Interval(NamedTuple):
    """A ratio head/base: its estimate and the ends of its confidence interval."""

    ratio: float
    low: float
    high: float

    @property
    def verdict(self) -> str:
        if self.low > 1:
            return "slower"
        return "faster" if self.high < 1 else "noise"

    @property
    def suspicious(self) -> bool:
        return self.low > 1 + TIME_ALLOWED

    def __str__(self) -> str:
        return f"x{self.ratio:.3f} [{self.low:.3f}, {self.high:.3f}]"


def median_ratio(launches: Sequence[Sequence[float]], level: float = LEVEL, seed: int = 0) -> Interval:
    """The median of the rounds' ratios, every launch having the same weight. launches[i]: ratios of one launch."""
    counts = np.array([len(launch) for launch in launches])
    longest = int(counts.max())
    # Each launch stretched to the longest one's length, so that its weight is the others'.
    stretched = np.array([np.asarray(launch)[np.arange(longest) * len(launch) // longest] for launch in launches])
    random = np.random.default_rng(seed)
    chosen = random.integers(len(launches), size=(RESAMPLED, len(launches)))
    rounds = (random.random((RESAMPLED, len(launches), longest)) * counts[chosen][..., None]).astype(int)
    padded = np.zeros_like(stretched)
    for i, launch in enumerate(launches):
        padded[i, : len(launch)] = launch
    medians = np.median(padded[chosen[..., None], rounds].reshape(RESAMPLED, -1), axis=1)
    low, high = np.quantile(medians, [(1 - level) / 2, (1 + level) / 2])
    return Interval(float(np.median(stretched)), float(low), float(high))
