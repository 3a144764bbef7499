"""Interleaved readings of steps whose cost is known."""

import time
from collections.abc import Callable

from eblvm.bench.tools.timing import elapsed_ms, interleaved, median, warmed_repeats


def burn(ms: float) -> Callable[[], None]:
    def step() -> None:
        end = time.process_time() + ms / 1e3
        while time.process_time() < end:
            pass

    return step


def test_readings_are_cpu_milliseconds_of_one_call() -> None:
    assert 1.9 < elapsed_ms(burn(2), 5, "cpu") < 3
    assert elapsed_ms(lambda: time.sleep(0.05), 1, "cpu") < 20  # waiting is not work


def test_short_steps_are_repeated() -> None:
    assert warmed_repeats(burn(30), "cpu") == 1
    assert 8 <= warmed_repeats(burn(2), "cpu") <= 11


def test_interleaved_alternates_within_a_group() -> None:
    calls: list[str] = []

    def named(name: str) -> Callable[[], None]:
        def step() -> None:
            calls.append(name)
            burn(25)()

        return step

    ticks: list[int] = []
    readings = interleaved([[named("a"), named("b")], [named("c")]], 2, "cpu", lambda: ticks.append(1))
    assert calls[-6:] == ["a", "b", "c", "b", "a", "c"]
    assert len(ticks) == 4
    assert [len(times) for group in readings for times in group] == [2, 2, 2]
    assert 24 < median(readings[0][1]) < 40
