"""Signals that end a run: it saves first."""

import signal
from types import FrameType

from eblvm.engine.system import ENDINGS


class Interrupt:
    """SIGINT, SIGTERM and SIGHUP ask the loop to save and leave; a second SIGINT ends at once."""

    def __init__(self) -> None:
        self.requested = False
        self._before = {s: signal.signal(s, self._ask) for s in ENDINGS}

    def _ask(self, number: int, frame: FrameType | None) -> None:
        if self.requested and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.requested = True

    def restore(self) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
