"""Registers whose values are on their way: results of asynchronous products, until their group is waited for."""

import numpy as np

from tests.emulator.formats import Array
from tests.emulator.parser import Operand


class Flights:
    def __init__(self, names: set[str]) -> None:
        self.names = names
        self.start(0)

    def start(self, lanes: int) -> None:
        self._group = {name: np.full(lanes, -1) for name in self.names}  # -1 where a value has arrived
        self._committed = np.zeros(lanes, np.int64)

    def begin(self, registers: tuple[Operand, ...], who: Array) -> None:
        for register in registers:
            self._group[register.name][who] = self._committed[who]

    def commit(self, who: Array) -> None:
        self._committed[who] += 1

    def wait(self, who: Array, pending: int) -> None:
        """Until at most so many groups are on their way."""
        for group in self._group.values():
            group[who] = np.where(group[who] < self._committed[who] - pending, -1, group[who])

    def of(self, name: str) -> Array:
        """Mask of the threads whose value has not arrived."""
        return self._group[name] >= 0
