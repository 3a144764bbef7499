"""A memory, and its shadow: what may be touched, what was written, and who touched it last.

A fault would stop a GPU or reach another tensor: it is raised. Problems are collected, and the program goes on.
"""

from collections import Counter
from typing import NamedTuple

import numpy as np

from tests.emulator.formats import WORDS, Array
from tests.emulator.order import THREADS, Order

PARAMETERS = 1 << 48  # the address of the first parameter of a launch


class MemoryFaultError(Exception):
    """An access that ends a launch."""


class Memory:
    """Bytes, as words of every size; `at` is in bytes from the start, a multiple of the size."""

    def __init__(self, size: int) -> None:
        self.bytes = np.full(-(-size // 16) * 16, 0xFF, np.uint8)  # NaN in every floating type
        self._words = {bits // 8: self.bytes.view(word) for bits, word in WORDS.items() if bits > 1}

    def load(self, at: Array, size: int) -> Array:
        return self._words[size][at // size]

    def store(self, at: Array, words: Array) -> None:
        self._words[words.itemsize][at // words.itemsize] = words


class Access(NamedTuple):
    """By some threads: each touches `size` bytes at its own `at`."""

    at: Array
    size: int
    threads: Array
    what: str  # the instruction, for messages


NOBODY = -1
VALID, WRITTEN = 1, 2
# How many touched a grain since the last barrier between them: one thread, threads of a warp, of a program, programs.
THREAD, WARP, PROGRAM, PROGRAMS = range(4)


class Shadow:
    """The checks on every access to one memory; a grain is its smallest element, in bytes."""

    def __init__(self, name: str, size: int, grain: int, order: Order, problems: Counter[str]) -> None:
        self._name, self._size, self._grain, self._order, self._problems = name, size, grain, order, problems
        grains = -(-size // grain)
        self._state = np.zeros(grains, np.uint8)
        self._writer = np.full(grains, NOBODY, np.int64)  # stamps
        self._reader = np.full(grains, NOBODY, np.int64)
        self._readers = np.zeros(grains, np.uint8)
        self._is_written = False

    def allow(self, begin: int, written: Array) -> None:
        """Bytes from `begin` on are a tensor's; `written` says which have a value."""
        grains = self._grains(begin, len(written))
        self._state[grains] = np.where(written[:: self._grain], VALID | WRITTEN, VALID)

    def written(self, begin: int, size: int) -> Array:
        return np.repeat(self._state[self._grains(begin, size)] & WRITTEN != 0, self._grain)[:size]

    def read(self, access: Access) -> None:
        grain, stamps = self._checked(access, must_be_written=True)
        if self._is_written:
            self._conflict(access, grain, stamps, self._writer, None, "read of what another thread writes")
        self._join_readers(grain, stamps)

    def write(self, access: Access) -> None:
        grain, stamps = self._checked(access)
        self._conflict(access, grain, stamps, self._reader, self._readers, "write to what another thread reads")
        if self._is_written:
            self._conflict(access, grain, stamps, self._writer, None, "write to what another thread writes")
        self._is_written = True
        self._writer[grain] = stamps
        others = self._order.program(self._writer[grain]) != self._order.program(stamps)
        if others.any():
            self._problem(access, "hazard between programs: write to what another thread writes")
        self._state[grain] |= WRITTEN

    def atomic(self, access: Access) -> None:
        """Atomics do not race with each other; they need a start value."""
        self._checked(access, must_be_written=True)

    def _grains(self, begin: int, size: int) -> slice:
        return slice(begin // self._grain, -(-(begin + size) // self._grain))

    def _checked(self, access: Access, *, must_be_written: bool = False) -> tuple[Array, Array]:
        """Return the grains of an access and the stamp of each."""
        at, size = access.at, access.size
        if (at % size).any():
            raise MemoryFaultError(f"misaligned access of {size} bytes, {self._name} memory: {access.what}")
        if at.min() < 0 or at.max() + size > self._size:
            raise MemoryFaultError(f"access out of bounds, {self._name} memory: {access.what}")
        grain, stamps = at // self._grain, self._order.stamps(access.threads)
        if size > self._grain:
            grain = (grain[:, None] + np.arange(size // self._grain)).ravel()
            stamps = np.repeat(stamps, size // self._grain)
        state = np.bitwise_and.reduce(self._state[grain])
        if not state & VALID:
            raise MemoryFaultError(f"access out of bounds of every tensor, {self._name} memory: {access.what}")
        if must_be_written and not state & WRITTEN:
            self._problem(access, "read of what nobody wrote")
        return grain, stamps

    def _join_readers(self, grain: Array, stamps: Array) -> None:
        before = self._reader[grain]
        self._reader[grain] = stamps
        # Threads of this very access that meet in a grain: all but the last to leave its stamp find another's.
        for earlier in (before, self._reader[grain]):
            readers = self._readers[grain]
            alone = (readers == THREAD) & ((earlier ^ stamps) & THREADS == 0)
            joined = np.nonzero(~alone & (earlier != stamps) & (earlier != NOBODY))[0]
            if not len(joined):
                continue
            theirs, mine, where, readers = earlier[joined], stamps[joined], grain[joined], readers[joined]
            readers[self._order.ordered(theirs, mine, readers == PROGRAM) & (readers < PROGRAMS)] = THREAD
            apart = (theirs ^ mine) & THREADS
            joins = (apart != 0) & ~self._order.ordered(theirs, mine, apart >> 5 != 0)
            readers[joins] = np.maximum(readers[joins], np.where(apart[joins] >> 5 == 0, WARP, PROGRAM))
            readers[self._order.program(theirs) != self._order.program(mine)] = PROGRAMS
            self._readers[where] = readers

    def _conflict(
        self, access: Access, grain: Array, stamps: Array, last: Array, many: Array | None, words: str
    ) -> None:
        before = last[grain]
        readers = np.full(len(grain), THREAD, np.uint8) if many is None else many[grain]
        others = (before != NOBODY) & (((before ^ stamps) & THREADS != 0) | (readers > THREAD))
        if not others.any():
            return
        before, stamps, readers = before[others], stamps[others], readers[others]
        own = (self._order.program(before) == self._order.program(stamps)) & (readers < PROGRAMS)
        if (own & ~self._order.ordered(before, stamps, readers == PROGRAM)).any():
            self._problem(access, f"race: {words}")
        foreign = ~own & (readers < PROGRAMS)
        unseen = self._order.unseen(self._order.program(stamps[foreign]), before[foreign])
        if unseen.any() or (readers == PROGRAMS).any():
            self._problem(access, f"hazard between programs: {words}")

    def _problem(self, access: Access, words: str) -> None:
        self._problems[f"{words}, {self._name} memory: {access.what}"] += 1
