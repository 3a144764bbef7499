"""Steps with memory kept and given back: readings of a process, and what a record says of them."""

import pytest
import torch

from eblvm.bench.measurements import freed_memory
from eblvm.bench.measurements.freed_memory import GIVEN_BACK, KEPT


def test_a_record_has_both_readings_of_every_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(freed_memory, "STEPS_OF", {"small": lambda: lambda: torch.ones(1000).sum()})
    asked = []

    def here(how: str) -> dict[str, list[float]]:
        asked.append(how)
        return freed_memory.readings(how == KEPT)

    monkeypatch.setattr(freed_memory, "in_a_process", here)
    made = freed_memory.run(2)
    assert asked == [KEPT, GIVEN_BACK] * 2
    (row,) = made["rows"]
    assert row["kept_ms"] > 0
    assert row["given_back_ms"] > 0
    header, rows = freed_memory.table(made)
    assert len(header) == len(rows[0])


def test_a_process_is_not_tuned(monkeypatch: pytest.MonkeyPatch) -> None:
    """An environment that tunes the heap does not reach it."""
    monkeypatch.setenv("MALLOC_TRIM_THRESHOLD_", "0")
    monkeypatch.setattr(freed_memory.subprocess, "run", run := Recorded())
    assert freed_memory.in_a_process(KEPT) == {"small": [1.0, 0.0]}
    assert run.command[-2:] == ["eblvm.bench.measurements.freed_memory", KEPT]
    assert "MALLOC_TRIM_THRESHOLD_" not in run.environment


class Recorded:
    """Records the command instead of running it, and answers."""

    def __call__(self, command: list[str], env: dict[str, str], **how: object) -> "Recorded":
        self.command, self.environment, self.stdout = command, env, b'{"small": [1.0, 0.0]}'
        return self
