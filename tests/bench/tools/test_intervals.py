"""The time gate on synthetic readings, with the noise that was seen on a busy machine of two cores."""

import numpy as np
import pytest

from eblvm.bench.tools.intervals import Interval, median_ratio

LAUNCHES, ROUNDS = 12, 20
ROUND_NOISE, PROCESS_LUCK = 0.08, 0.025  # of log ratios; the second one lasts for a process's life


def block(random: np.random.Generator, slower: float) -> Interval:
    """Readings of a case that is `slower` times as slow, one in ten of them disturbed by up to a half."""
    ratios = []
    for _ in range(LAUNCHES):
        luck = random.normal(0, PROCESS_LUCK)
        noise = random.normal(0, ROUND_NOISE, ROUNDS)
        disturbed = np.where(random.random(ROUNDS) < 0.1, random.uniform(-0.4, 0.4, ROUNDS), 0)
        ratios.append(list(slower * np.exp(luck + noise + disturbed)))
    return median_ratio(ratios)


def alarms(slower: float, trials: int = 50) -> int:
    random = np.random.default_rng(0)
    return sum(block(random, slower).suspicious and block(random, slower).suspicious for _ in range(trials))


def test_a_planted_slow_down_is_found_and_equals_give_no_alarm() -> None:
    assert alarms(1.05) >= 45
    assert alarms(1.0) == 0


def test_intervals_hold_the_truth_as_often_as_they_say() -> None:
    random = np.random.default_rng(1)
    held = sum(i.low <= 1.03 <= i.high for i in (block(random, 1.03) for _ in range(100)))
    assert 80 <= held <= 97


@pytest.mark.parametrize(("slower", "verdict"), [(1.08, "slower"), (0.92, "faster"), (1.0, "noise")])
def test_verdicts(slower: float, verdict: str) -> None:
    assert block(np.random.default_rng(2), slower).verdict == verdict


def test_launches_have_equal_weight() -> None:
    """A launch that was stalled and had two rounds counts as much as one with fifty."""
    interval = median_ratio([[1.2, 1.2], [1.0] * 50, [1.2] * 3])
    assert interval.ratio == pytest.approx(1.2)
    assert interval.low == pytest.approx(1.0)
