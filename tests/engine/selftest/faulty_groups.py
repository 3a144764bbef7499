"""Groups of checks of which one goes wrong, for a process of their own."""

import os
import time
from collections.abc import Iterator
from functools import partial

from eblvm.engine.selftest.finding import Measured, SelfCheck

GOOD = partial(Measured, 0.5, 1.0)


def raising() -> Measured:
    raise RuntimeError("no kernel image is available")


def hanging() -> Measured:
    time.sleep(600)
    return Measured(0.0)


def crashing() -> Measured:
    os.abort()


def some(device: str) -> Iterator[SelfCheck]:
    yield SelfCheck("first", GOOD)
    yield SelfCheck("raises", raising)
    yield SelfCheck("hangs", hanging)
    yield SelfCheck("crashes", crashing)
    yield SelfCheck("after them", GOOD)


def broken(device: str) -> Iterator[SelfCheck]:
    yield SelfCheck("before", GOOD)
    raise ValueError("no second check")


def last(device: str) -> Iterator[SelfCheck]:
    yield SelfCheck("last", partial(Measured, float(os.getpid())))


def unusable(device: str) -> Iterator[SelfCheck]:
    """Stands for a process that cannot start: it ends before the first check."""
    os._exit(7)
