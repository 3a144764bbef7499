"""Which accesses are ordered: by barriers within a program, by releases and acquires between programs.

Threads, warps and programs are numbered through the launch. A warp counts its barriers, those of its program included;
the stamp of an access is its warp's count and its thread. Two accesses of one program are ordered if a barrier of the
program lies between them, or, for threads of one warp, a barrier of the warp. What a program did before a barrier and
its release of an atomic word, another sees from the barrier behind its own acquire of that word on: a vector clock.
"""

import numpy as np

from tests.emulator.formats import Array

THREADS = 2**32 - 1  # the bits of a stamp that are the thread's number


class Order:
    def __init__(self, programs: int, warps: int) -> None:
        """`warps` of one program."""
        self.warps = warps
        self._shift = (32 * warps).bit_length() - 1  # warps are a power of two
        self._barriers = np.zeros(programs * warps, np.int64)  # that a warp has passed
        self._of_program = np.zeros(programs * warps, np.int64)  # the same just behind the last of its whole program
        self._clocks: dict[int, Array] = {}  # what a program sees: of every warp, what it did before so many barriers
        self._acquired: dict[int, Array] = {}  # seen from the program's next barrier on
        self._released: dict[int, Array] = {}  # by the address of the atomic word

    def barrier(self, programs: Array) -> None:
        """All threads of these programs meet."""
        warps = (programs[:, None] * self.warps + np.arange(self.warps)).ravel()
        self._barriers[warps] += 1
        self._of_program[warps] = self._barriers[warps]
        for program in self._acquired.keys() & set(programs.tolist()):
            _join(self._clocks, program, self._acquired.pop(program))

    def warp_barrier(self, warps: Array) -> None:
        if self.warps == 1:
            self.barrier(warps)
        else:
            self._barriers[warps] += 1

    def stamps(self, threads: Array) -> Array:
        return self._barriers[threads >> 5] << 32 | threads

    def program(self, stamps: Array) -> Array:
        return (stamps & THREADS) >> self._shift

    def ordered(self, before: Array, stamps: Array, across: Array) -> Array:
        """Mask where a barrier separates accesses of one program; one of its warp is enough but where `across`."""
        count = before >> 32
        by_program = count < self._of_program[(before & THREADS) >> 5]
        if by_program.all():
            return by_program
        in_warp = (((before ^ stamps) & THREADS) >> 5 == 0) & ~across
        return by_program | in_warp & (count < stamps >> 32)

    def unseen(self, programs: Array, before: Array) -> Array:
        """Mask where accesses of other programs are not seen by `programs`."""
        unseen = np.ones(len(programs), bool)
        for program, clock in self._clocks.items():
            own = programs == program
            unseen[own] = before[own] >> 32 >= clock[(before[own] & THREADS) >> 5]
        return unseen

    def release(self, program: int, word: int) -> None:
        """Publish with the word what the program did before its last barrier, and what it sees itself."""
        clock = self._clocks.get(program, np.zeros_like(self._barriers)).copy()
        own = slice(program * self.warps, (program + 1) * self.warps)
        clock[own] = self._of_program[own]
        _join(self._released, word, clock)

    def acquire(self, program: int, word: int) -> None:
        if word in self._released:
            _join(self._acquired, program, self._released[word])


def _join(clocks: dict[int, Array], key: int, clock: Array) -> None:
    clocks[key] = np.maximum(clocks[key], clock) if key in clocks else clock
