"""A run's log: stats.jsonl (one JSON object a line), TensorBoard, and the progress bar."""

import json
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch.utils.tensorboard import SummaryWriter
from tqdm import tqdm

from eblvm.engine.durable import failed, make_folder, open_to_append, write_atomic
from eblvm.engine.progress import progress
from eblvm.engine.training.replicas import by_rate
from eblvm.engine.training.stats import read_rows


class Log:
    """Appends to a run's log. A resumed run drops the lines after the step it continues from: no step stands twice."""

    def __init__(self, folder: Path, start: int, steps: int, description: str, labels: Sequence[str] = ()):
        """`labels` are the replicas' learning rates (`replicas.rate_labels`): curves are means over seeds only."""
        self.labels = labels
        self.path = folder / "stats.jsonl"
        make_folder(folder / "tensorboard")
        if self.path.exists():
            kept = [row for row in read_rows(self.path) if row["step"] <= start]
            write_atomic(self.path, "".join(json.dumps(row) + "\n" for row in kept).encode())
        self.file = open_to_append(self.path)
        self._hook, threading.excepthook = threading.excepthook, self._quiet
        self.board = SummaryWriter(str(folder / "tensorboard"), purge_step=start + 1)
        self.bar = progress(steps, description, "step", start)

    def write(self, step: int, values: dict[str, list[float]]) -> None:
        """`values` by name, one entry a replica; a single run's are written as numbers."""
        record: dict[str, Any] = {"step": step}
        for name, by_replica in values.items():
            record[name] = by_replica[0] if len(by_replica) == 1 else by_replica
        try:
            for name, by_replica in values.items():
                for label, mean in self._means(by_replica).items():
                    self.board.add_scalar(f"{name}/{label}" if label else name, mean, step)
            self.file.write(json.dumps(record) + "\n")
            self.file.flush()
        except OSError as error:
            raise failed(self.path, error, "its rows before this one and the checkpoints are kept") from None
        if "loss" in values:
            losses = ", ".join(f"{mean:.4g}" for mean in self._means(values["loss"]).values())
            self.bar.set_postfix_str(f"loss {losses}", refresh=False)

    def _means(self, by_replica: list[float]) -> dict[str, float]:
        """Means over seeds, by learning rate."""
        groups = by_rate(by_replica, self.labels or [""] * len(by_replica))
        return {label: sum(found) / len(found) for label, found in groups.items()}

    def _quiet(self, failure: threading.ExceptHookArgs) -> None:
        """TensorBoard writes from a thread. A full disk or a deleted folder there is no traceback: the row says so."""
        if not (failure.exc_type and issubclass(failure.exc_type, OSError)):
            self._hook(failure)

    def close(self) -> None:
        self.bar.close()
        for part in (self.file, self.board):
            try:
                part.close()
            except OSError as error:  # a full disk; every row that counts was flushed when it was written
                print(f"warning: {failed(self.path, error)}", file=sys.stderr)
        threading.excepthook = self._hook


class NullLog:
    """The log of a process that is not the first of its run."""

    bar = tqdm(disable=True)

    def write(self, step: int, values: dict[str, list[float]]) -> None: ...

    def close(self) -> None: ...
