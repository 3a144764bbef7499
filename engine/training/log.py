"""A run's log: stats.jsonl (one JSON object per line), the loggers, the progress bar, and the wall time.

A logger sends curves and pictures to a service: TensorBoard, Weights & Biases, MLflow. It has the three methods of
`Logger`; another service is another class with them and a name in LOGGERS.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any, Protocol

import torch
from tqdm import tqdm

from eblvm.engine.durable import failed, make_folder, open_to_append, write_atomic
from eblvm.engine.errors import UserError
from eblvm.engine.machine import peak_memory_mib
from eblvm.engine.optim.replicas import by_rate
from eblvm.engine.progress import progress
from eblvm.engine.runs.stats import MEASURED, read_rows


class Log:
    """A run's log, appended to. A resumed run drops the lines after the step it continues from: no step is listed
    twice."""

    def __init__(
        self,
        folder: Path,
        start: int,
        steps: int,
        description: str,
        names: Sequence[str] = (),
        loggers: Sequence[str] = ("tensorboard",),
        config: Mapping[str, Any] | None = None,
    ):
        """`names` are the replicas' (`Optimisation.names`): a logger gets the curves of each, and means over seeds."""
        self.names, self.description, self.busy = names, description, False
        self.path = folder / "stats.jsonl"
        self.seconds = 0.0  # of training before this process
        self._hook, threading.excepthook = threading.excepthook, self._quiet
        self.loggers: list[Logger] = [LOGGERS[name](folder, start, config or {}) for name in loggers]
        if self.path.exists():
            kept = [row for row in read_rows(self.path) if row["step"] <= start]
            self.seconds = next((r["seconds"] for r in reversed(kept) if isinstance(r.get("seconds"), float)), 0.0)
            write_atomic(self.path, "".join(json.dumps(row) + "\n" for row in kept).encode())
        self.file = open_to_append(self.path)
        self.bar = progress(steps, description, "step", start)

    def doing(self, what: str = "") -> None:
        """Say what is done instead of taking steps: compiling, validating; nothing: steps again."""
        self.busy = bool(what)
        self.bar.set_description_str(f"{self.description}, {what}" if what else self.description)

    def stepped(self) -> None:
        """Count a step; what was done before it is over."""
        self.bar.update()
        if self.busy:
            self.doing()

    @contextmanager
    def doing_now(self, what: str) -> Iterator[None]:
        self.doing(what)
        yield
        self.doing()

    def write(self, step: int, values: dict[str, list[float]], measured: Mapping[str, float] | None = None) -> None:
        """Write `values` by name, one entry per replica, for a single run as numbers. `measured` is time, speed and
        memory."""
        measured = measured or {}
        record: dict[str, Any] = {"step": step}
        for name, by_replica in values.items():
            record[name] = by_replica[0] if len(by_replica) == 1 else by_replica
        curves = {
            f"{name}/{label}" if label else name: value
            for name, by_replica in values.items()
            for label, value in self._curves(by_replica).items()
        }
        try:
            for logger in self.loggers:
                logger.scalars(step, curves | dict(measured))
            self.file.write(json.dumps(record | dict(measured)) + "\n")
            self.file.flush()
        except OSError as error:
            raise failed(self.path, error, "its rows before this one and the checkpoints are kept") from None
        if "loss" in values:
            losses = ", ".join(f"{mean:.4g}" for mean in self._means(values["loss"]).values())
            memory = f", {measured['memory_mib']:.0f} MiB" if "memory_mib" in measured else ""
            self.bar.set_postfix_str(f"loss {losses}{memory}", refresh=False)

    def images(self, step: int, paths: Mapping[str, Path]) -> None:
        for logger in self.loggers:
            logger.images(step, paths)

    def _curves(self, by_replica: list[float]) -> dict[str, float]:
        """Return means over seeds and every replica's own value; of a single run its value."""
        own = dict(zip(self.names, by_replica, strict=True)) if len(by_replica) > 1 else {}
        return self._means(by_replica) | own

    def _means(self, by_replica: list[float]) -> dict[str, float]:
        if len(by_replica) == 1:
            return {"": by_replica[0]}
        groups = by_rate(by_replica, [name.partition(" ")[2] for name in self.names])
        return {label: sum(over_seeds) / len(over_seeds) for label, over_seeds in groups.items()}

    def _quiet(self, failure: threading.ExceptHookArgs) -> None:
        """Drop an OSError of TensorBoard's thread (full disk, deleted folder): writing the row reports it."""
        if not (failure.exc_type and issubclass(failure.exc_type, OSError)):
            self._hook(failure)

    def close(self) -> None:
        self.bar.close()
        parts: list[Any] = [self.file, *self.loggers]
        for part in parts:
            try:
                part.close()
            except OSError as error:  # a full disk; every row that counts was flushed when it was written
                print(f"warning: {failed(self.path, error)}", file=sys.stderr)
        threading.excepthook = self._hook


class NullLog:
    bar = tqdm(disable=True)
    seconds = 0.0

    def doing(self, what: str = "") -> None: ...
    def stepped(self) -> None: ...
    def doing_now(self, what: str) -> AbstractContextManager[None]:
        return nullcontext()

    def write(self, step: int, values: dict[str, list[float]], measured: Mapping[str, float] | None = None) -> None: ...
    def images(self, step: int, paths: Mapping[str, Path]) -> None: ...
    def close(self) -> None: ...


class Pace:
    """Time, speed and memory since the start of this process's training; `seconds` is the time of earlier parts."""

    def __init__(self, start: int, batch: int, device: torch.device, seconds: float = 0.0):
        self.batch, self.device = batch, device
        self.began = time.monotonic() - seconds
        self.last = (start, time.monotonic())
        self.done: dict[str, float] = {}

    def measured(self, step: int) -> dict[str, float]:
        """Return the MEASURED figures, with the rate since the last call."""
        now = time.monotonic()
        before, then = self.last
        self.last = (step, now)
        rate = (step - before) * self.batch / max(now - then, 1e-9)
        values = (round(now - self.began, 3), float(f"{rate:.4g}"), round(self.memory_mib(), 1))
        return dict(zip(MEASURED, values, strict=True))

    def memory_mib(self) -> float:
        """Return the peak of memory allocated on the GPU, or the process's peak use of the machine's memory."""
        if self.device.type == "cuda":
            return torch.cuda.max_memory_allocated(self.device) / 2**20
        return peak_memory_mib()

    def due(self, what: str, minutes: float) -> bool:
        """Return whether so many minutes have passed since `what` was last done, or since the start; 0: never."""
        return minutes > 0 and time.monotonic() - self.done.setdefault(what, time.monotonic()) >= 60 * minutes

    def did(self, what: str) -> None:
        self.done[what] = time.monotonic()


class Logger(Protocol):
    def scalars(self, step: int, values: Mapping[str, float]) -> None: ...
    def images(self, step: int, paths: Mapping[str, Path]) -> None: ...
    def close(self) -> None: ...


class TensorBoard:
    def __init__(self, folder: Path, start: int, config: Mapping[str, Any]):
        from torch.utils.tensorboard import SummaryWriter

        make_folder(folder / "tensorboard")
        self.board = SummaryWriter(str(folder / "tensorboard"), purge_step=start + 1)

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            self.board.add_scalar(name, value, step)

    def images(self, step: int, paths: Mapping[str, Path]) -> None:
        import matplotlib.image

        for name, path in paths.items():
            self.board.add_image(name, matplotlib.image.imread(path)[..., :3], step, dataformats="HWC")

    def close(self) -> None:
        self.board.close()


class WandB:
    """A Weights & Biases run whose id follows from the run's folder: a continued run continues there too."""

    def __init__(self, folder: Path, start: int, config: Mapping[str, Any]):
        wandb = _module("wandb")
        name = folder.resolve()
        identity = hashlib.sha256(str(name).encode()).hexdigest()[:16]
        self.wandb = wandb
        self.run = wandb.init(
            project="eblvm", name=name.name, id=identity, resume="allow", dir=str(folder), config=dict(config)
        )

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        self.run.log(dict(values), step=step)

    def images(self, step: int, paths: Mapping[str, Path]) -> None:
        self.run.log({name: self.wandb.Image(str(path)) for name, path in paths.items()}, step=step)

    def close(self) -> None:
        self.run.finish()


class MLflow:
    def __init__(self, folder: Path, start: int, config: Mapping[str, Any]):
        self.mlflow = _module("mlflow")
        self.mlflow.set_experiment("eblvm")
        note = folder / ".mlflow"  # the id of this run at MLflow, so that it is continued
        self.run = self.mlflow.start_run(run_id=note.read_text() if note.is_file() else None, run_name=folder.name)
        note.write_text(self.run.info.run_id)
        if start == 0:
            self.mlflow.log_dict(dict(config), "config.json")

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        self.mlflow.log_metrics({name.replace("=", " "): value for name, value in values.items()}, step=step)

    def images(self, step: int, paths: Mapping[str, Path]) -> None:
        for path in paths.values():
            self.mlflow.log_artifact(str(path), "previews")

    def close(self) -> None:
        self.mlflow.end_run()


def _module(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError:
        raise UserError(f"--logger {name} needs the package; pip install 'eblvm[{name}]', or remove --logger") from None


LOGGERS: dict[str, Callable[[Path, int, Mapping[str, Any]], Logger]] = {
    "tensorboard": TensorBoard,
    "wandb": WandB,
    "mlflow": MLflow,
}
