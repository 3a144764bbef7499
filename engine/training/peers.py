"""The other processes of a run: who of them is gone, and a watchdog for a collective that hangs.

Every process counts up a number of its own in torchrun's store, every few seconds, from a thread. A process that was
killed, stopped or cut off counts no more. Where a collective fails, or waits for longer than the patience, the others
name it in one line and end; the checkpoint is kept, and torchrun's --max-restarts starts all of them again.
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
WHAT_TO_DO = "give the same command again, it continues at the last checkpoint; torchrun --max-restarts does so itself"


def patience_s() -> float:
    text = os.environ.get(PATIENCE, "")
    try:
        found = float(text) if text else DEFAULT_PATIENCE_S
    except ValueError:
        found = 0.0
    if not 3 * BEAT_S <= found <= 1e6:
        raise UserError(f"got {PATIENCE}={text!r}, expected seconds from {3 * BEAT_S:g} to 1e6; unset it, or give such")
    return found


class Peers:
    """Beats for this process and listens to the others'."""

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
                    found = self.store.add(f"beat-{other}", 0)
                    if found != count:
                        self.counts[other] = (found, time.monotonic())
                self.heard_store = time.monotonic()
            except RuntimeError:  # the store is gone or cut off; it may come back
                pass

    def _watch(self) -> None:
        while not self._stopped.wait(BEAT_S):
            if gone := self._gone(self.patience):
                print(f"\neblvm: {self._sentence(gone, f'has not answered for {self.patience:g} s')}", file=sys.stderr)
                sys.stderr.flush()
                os._exit(LostPeerError.exit_code)

    def _gone(self, silence: float) -> str:
        """Who has been silent for so long, in words; empty if nobody."""
        now = time.monotonic()
        if now - self.heard_store > silence:
            return "the first node (torchrun's store)"
        ranks = [str(other) for other, (_, heard) in self.counts.items() if now - heard > silence]
        return f"rank{'s' * (len(ranks) > 1)} {', '.join(ranks)}" if ranks else ""

    def lost(self, error: BaseException) -> LostPeerError:
        """The one line for a collective that failed: waits a few beats to see who is silent."""
        deadline = time.monotonic() + 5 * BEAT_S
        while not (gone := self._gone(2.5 * BEAT_S)) and time.monotonic() < deadline:
            time.sleep(BEAT_S / 4)
        reason = str(error).strip().partition("\n")[0].rpartition("] ")[2][:100]
        return LostPeerError(self._sentence(gone or "another process", f"is gone or cannot be reached ({reason})"))

    def _sentence(self, gone: str, what: str) -> str:
        return f"rank {self.rank}: {gone} {what}; what was saved is kept: {WHAT_TO_DO}"
