"""The wall time of a run: how fast it is, how much memory it took, and what is due by the clock."""

from __future__ import annotations

import time

import torch

from eblvm.engine.system import peak_memory_mib
from eblvm.engine.training.stats import MEASURED


class Pace:
    """Counts from the start of this process's training; `seconds` goes on from an earlier part of the run."""

    def __init__(self, start: int, batch: int, device: torch.device, seconds: float = 0.0):
        self.batch, self.device = batch, device
        self.began = time.monotonic() - seconds
        self.last = (start, time.monotonic())
        self.done: dict[str, float] = {}

    def measured(self, step: int) -> dict[str, float]:
        """MEASURED, the rate since the last call."""
        now = time.monotonic()
        before, then = self.last
        self.last = (step, now)
        rate = (step - before) * self.batch / max(now - then, 1e-9)
        values = (round(now - self.began, 3), float(f"{rate:.4g}"), round(self.memory_mib(), 1))
        return dict(zip(MEASURED, values, strict=True))

    def memory_mib(self) -> float:
        """The most that was allocated on the GPU, or the most that the process took of the machine's memory."""
        if self.device.type == "cuda":
            return torch.cuda.max_memory_allocated(self.device) / 2**20
        return peak_memory_mib()

    def due(self, what: str, minutes: float) -> bool:
        """Have so many minutes passed since `what` was last done, or since the start? 0: never."""
        return minutes > 0 and time.monotonic() - self.done.setdefault(what, time.monotonic()) >= 60 * minutes

    def did(self, what: str) -> None:
        self.done[what] = time.monotonic()
