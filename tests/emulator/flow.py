"""Where threads are: all at one instruction, or each at its own.

Threads that part take turns: those at the lowest instruction run until others are lower, which is where they meet
again. A program's threads wait at a barrier until none of them runs.
"""

import numpy as np

from tests.emulator.formats import Array
from tests.emulator.order import Order

Mask = Array | None  # of the threads; None is all of them


class Threads:
    def __init__(self, first: int, programs: int, threads: int, order: Order) -> None:
        """`threads` of each of so many programs, from the number `first` on."""
        self._first, self._shape, self._order = first, (programs, threads), order
        self._together: int | None = 0
        self._own = np.zeros(programs * threads, np.int64)
        self._waits, self._done = np.zeros((2, programs * threads), bool)

    def turn(self) -> tuple[int, Mask] | None:
        """Return the next instruction and who runs it; None at the end."""
        if self._together is not None:
            return self._together, None
        runs = ~(self._waits | self._done)
        if not runs.any():
            return None
        lowest = int(self._own[runs].min())
        mask = runs & (self._own == lowest)
        if mask.all():
            self._together = lowest
            return lowest, None
        return lowest, mask

    def advance(self, mask: Mask) -> None:
        if mask is None:
            assert self._together is not None
            self._together += 1
        else:
            self._own[mask] += 1

    def jump(self, target: int, taken: Mask, mask: Mask) -> None:
        """Of the threads in `mask` those in `taken` jump."""
        if taken is None:
            self._together = target
            return
        self._part()
        self._own[slice(None) if mask is None else mask] += 1
        self._own[taken] = target

    def leave(self, leaving: Mask, mask: Mask) -> None:
        self._part()
        everyone = slice(None)
        self._own[everyone if mask is None else mask] += 1
        self._done[everyone if leaving is None else leaving] = True
        self._release()

    def wait(self, waiting: Mask, mask: Mask) -> None:
        """Threads in `mask` but not in `waiting` go on."""
        if waiting is None:
            self._order.barrier(np.arange(self._first, self._first + self._shape[0]))
            self.advance(None)
            return
        self._part()
        self._own[slice(None) if mask is None else mask] += 1
        self._waits[waiting] = True
        self._release()

    def _part(self) -> None:
        if self._together is not None:
            self._own[:] = self._together
            self._together = None

    def _release(self) -> None:
        """Those that are left of a program, if all of them wait."""
        waits, done = self._waits.reshape(self._shape), self._done.reshape(self._shape)
        met = (waits | done).all(1) & waits.any(1)
        if met.any():
            waits[met] = False
            self._order.barrier(self._first + np.nonzero(met)[0])
