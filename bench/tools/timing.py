"""Interleaved CPU time of one thread (CUDA: events): neither other processes nor drift favour a contestant."""

import gc
import math
import statistics
import time
from collections.abc import Callable, Sequence

import torch

from eblvm.engine.machine import keep_freed_memory

Step = Callable[[], None]
BLOCK_MS = 20.0  # short steps are repeated until a reading is about this long


def elapsed_ms(step: Step, repeats: int, device: str) -> float:
    """Mean milliseconds of one call over `repeats` calls, with Python's garbage collector disabled."""
    gc.disable()
    try:
        if torch.device(device).type == "cuda":
            start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            start.record()
            for _ in range(repeats):
                step()
            end.record()
            end.synchronize()
            return float(start.elapsed_time(end)) / repeats
        begin = time.process_time()
        for _ in range(repeats):
            step()
        return 1e3 * (time.process_time() - begin) / repeats
    finally:
        gc.enable()


def warmed_repeats(step: Step, device: str, block_ms: float = BLOCK_MS) -> int:
    """Run `step` until its caches are full; return the number of calls in one reading."""
    step()
    once = min(elapsed_ms(step, 1, device) for _ in range(2))
    return max(1, math.ceil(block_ms / max(once, 1e-3)))


def warmed(step: Step) -> int:
    step()
    return 1


def interleaved(
    groups: Sequence[Sequence[Step]],
    rounds: int,
    device: str,
    tick: Callable[[], object] = lambda: None,
    long: bool = False,
) -> list[list[list[float]]]:
    """Readings [group][contestant][round] in ms. A round visits every group, and in it every contestant one after the
    other, in alternating order; so what disturbs the machine for a while disturbs all contestants of a group. `long`:
    steps of seconds, which are warm after one call and need no repeats. As in `eblvm train`, the memory that a step
    frees is reused by the next."""
    with keep_freed_memory():
        repeats = [[warmed(step) if long else warmed_repeats(step, device) for step in group] for group in groups]
        readings: list[list[list[float]]] = [[[] for _ in group] for group in groups]
        for r in range(rounds):
            for g, group in enumerate(groups):
                gc.collect(0)
                order = range(len(group)) if r % 2 == 0 else reversed(range(len(group)))
                for i in order:
                    readings[g][i].append(elapsed_ms(group[i], repeats[g][i], device))
                tick()
    return readings


def median(readings: Sequence[float]) -> float:
    return statistics.median(readings)


def ratio_by_round(readings: Sequence[float], of: Sequence[float]) -> float:
    """The median of the rounds' ratios: what slows the machine for a while slows both."""
    return median([a / b for a, b in zip(readings, of, strict=True)])
