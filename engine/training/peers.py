"""The other processes of a run: which of them are lost, and a watchdog for a collective that hangs.

Every process increments its own counter in torchrun's store about every second, from a thread. A process that was
killed, stopped or cut off stops counting. If a collective fails, or waits longer than the patience, the others name
the lost process in one line and exit; the checkpoint is kept, and torchrun's --max-restarts starts all of them again.
"""

import os
import sys
import threading
import time
from typing import Any

from eblvm.engine.errors import LostPeerError, UserError

BEAT_S = 1.0
PATIENCE = "EBLVM_PEER_TIMEOUT_S"
DEFAULT_PATIENCE_S = 120.0
WHAT_TO_DO = "give the same command again, it continues at the last checkpoint; torchrun --max-restarts does it itself"


def patience_s() -> float:
    text = os.environ.get(PATIENCE, "")
    try:
        seconds = float(text) if text else DEFAULT_PATIENCE_S
    except ValueError:
        seconds = 0.0
    if not 3 * BEAT_S <= seconds <= 1e6:
        raise UserError(
            f"got {PATIENCE}={text!r}, expected seconds from {3 * BEAT_S:g} to 1e6; unset it, or give such a number"
        )
    return seconds


class Peers:
    def __init__(self, store: Any, rank: int, world: int, patience: float):
        self.store, self.rank, self.patience = store, rank, patience
        now = time.monotonic()
        self.counts = {other: (0, now) for other in range(world) if other != rank}
        self.heard_store = now
        self._stopped = threading.Event()
        # Two threads: over a cut link a call to the store may wait for minutes, and the watch must not.
        threading.Thread(target=self._beat, daemon=True, name="beat").start()
        self._watching = threading.Thread(target=self._watch, daemon=True, name="watch")
        self._watching.start()

    def stop(self) -> None:
        self._stopped.set()
        self._watching.join(2 * BEAT_S)

    def _beat(self) -> None:
        while not self._stopped.wait(BEAT_S):
            try:
                self.store.add(f"beat-{self.rank}", 1)
                for other, (count, _) in list(self.counts.items()):
                    latest = self.store.add(f"beat-{other}", 0)
                    if latest != count:
                        self.counts[other] = (latest, time.monotonic())
                self.heard_store = time.monotonic()
            except RuntimeError:  # the store is gone or cut off; it may come back
                pass

    def _watch(self) -> None:
        while not self._stopped.wait(BEAT_S):
            if gone := self._gone(self.patience):
                said = self._sentence(gone, f"has not answered for {self.patience:g} s")
                print(f"\neblvm: {said}", file=sys.stderr, flush=True)
                os._exit(LostPeerError.exit_code)

    def _gone(self, silence: float) -> str:
        """Return in words which processes have been silent for so long; empty if none."""
        now = time.monotonic()
        if now - self.heard_store > silence:
            return "the first node (torchrun's store)"
        ranks = [str(other) for other, (_, heard) in self.counts.items() if now - heard > silence]
        return f"rank{'s' * (len(ranks) > 1)} {', '.join(ranks)}" if ranks else ""

    def lost(self, error: BaseException) -> LostPeerError:
        """Wait a few beats to see which process is silent; return the one-line error for the failed collective."""
        deadline = time.monotonic() + 5 * BEAT_S
        while not (gone := self._gone(2.5 * BEAT_S)) and time.monotonic() < deadline:
            time.sleep(BEAT_S / 4)
        reason = str(error).strip().partition("\n")[0].rpartition("] ")[2][:100]
        return LostPeerError(self._sentence(gone or "another process", f"is gone or cannot be reached ({reason})"))

    def _sentence(self, gone: str, what: str) -> str:
        return f"rank {self.rank}: {gone} {what}; what was saved is kept: {WHAT_TO_DO}"
