"""The power of growth along an axis: p of c + a x^p, with an interval for readings that differ by round."""

from collections.abc import Sequence

import numpy as np

from eblvm.bench.tools.timing import ratio_by_round

FLAT = 0.05  # a figure that moves by less than this fraction along an axis does not grow
POWERS = np.arange(25, 301) / 100
LEVEL, RESAMPLED = 0.9, 500  # of an exponent's interval


def exponent(xs: Sequence[float], ys: Sequence[float], offset: bool = True) -> float:
    """p of c + a x^p with c >= 0 (c = 0 without `offset`), by the least relative error; 0 where y does not grow."""
    if max(ys) - min(ys) <= FLAT * max(ys):
        return 0.0
    weight = 1 / np.asarray(ys)
    u = (np.asarray(xs) / xs[-1]) ** POWERS[:, None] * weight  # a's column of the design; c's is the weight, y's is 1
    uu, uw, u1, ww, w1 = (u * u).sum(1), u @ weight, u.sum(1), weight @ weight, weight.sum()
    c = (w1 * uu - uw * u1) / (ww * uu - uw * uw)
    c = np.maximum(c, 0) if offset else np.zeros_like(c)
    a = (u1 - c * uw) / uu
    misfit = np.square(c[:, None] * weight + a[:, None] * u - 1).sum(1)
    return float(POWERS[misfit.argmin()])


def fitted(values: Sequence[float], readings: Sequence[Sequence[float]], offset: bool = True) -> dict[str, float]:
    """p of the times readings[value][round] along an axis, with the ends of its interval."""

    def power(rounds: Sequence[int]) -> float:
        chosen = [[one[r] for r in rounds] for one in readings]
        return exponent(values, [ratio_by_round(one, chosen[-1]) for one in chosen], offset)

    count = len(readings[0])
    drawn = np.random.default_rng(0).integers(count, size=(RESAMPLED, count))
    low, high = np.quantile([power(rounds) for rounds in drawn], [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return {"p": power(range(count)), "low": float(low), "high": float(high)}
