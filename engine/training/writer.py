"""The files of a run that trains: its configuration, the rows of its log, and checkpoints written while steps go on."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from threading import Thread
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from eblvm.engine.config import Config
from eblvm.engine.errors import UserError
from eblvm.engine.methods.base import to_tree
from eblvm.engine.runs import checkpoint
from eblvm.engine.runs.folder import write_config
from eblvm.engine.training import distributed
from eblvm.engine.training.log import Log, NullLog, Pace
from eblvm.engine.training.start import Progress


class Writer:
    """All processes call it together; the first one writes, and its mistakes, a full disk say, are everyone's.

    A checkpoint's tensors are copied to the host at once, because steps move them in place. A thread serialises,
    hashes and writes the copy while steps go on, one checkpoint at a time. What goes wrong there is raised by `wait`.
    """

    def __init__(
        self,
        config: Config,
        out: Path,
        names: Sequence[str],
        start: Progress,
        begun: dict[str, Any] | None,
        kept: int | None,
    ):
        """Open the log of the replicas `names`.

        A fork saves its start at once, with the position `begun` of its input: then it does not need its parent any
        more. `kept` is the step of the newest checkpoint in the folder."""
        self.config, self.out, self.names, self._kept = config, out, names, kept
        self._thread: Thread | None = None
        self.error: BaseException | None = None  # that `wait` will raise
        self.log: Log | NullLog = NullLog()
        distributed.on_rank0(partial(self._begin, start, begun))
        optimisation, device = config.optimisation, torch.device(config.running.device)
        self.pace = Pace(start.step, optimisation.batch, device, self.log.seconds)

    def _begin(self, start: Progress, begun: dict[str, Any] | None) -> None:
        config, optimisation = self.config, self.config.optimisation
        write_config(config, self.out)
        if begun is not None:
            checkpoint.save(self.out / "checkpoints", start.step, content(start, begun), config.running.keep)
        title, loggers = f"{config.recipe} {config.method.kind}", config.running.logger
        self.log = Log(self.out, start.step, optimisation.steps, title, self.names, loggers, config.to_json())

    def row(self, step: int, values: dict[str, list[float]], measured: Mapping[str, float]) -> None:
        def write() -> None:
            require_folder(self.out)
            self.log.write(step, values, measured)

        distributed.on_rank0(write)

    def save(self, progress: Progress, position: dict[str, Any]) -> None:
        """Begin to write a checkpoint, when the one before it is written; `position` is that of the input.

        Only its "state" is copied: nothing else in it is moved in place."""

        def begin() -> None:
            self._finish()
            payload = content(progress, position)
            copied = payload | {"state": tree_map(_on_host, payload["state"])}
            self._thread = Thread(target=self._write, args=(copied,), name="checkpoint", daemon=True)
            self._thread.start()

        distributed.on_rank0(begin)

    def _write(self, payload: dict[str, Any]) -> None:
        try:
            require_folder(self.out)
            try:
                checkpoint.save(self.out / "checkpoints", payload["step"], payload, self.config.running.keep)
            except (OSError, UserError):
                require_folder(self.out)  # it may have been removed meanwhile, which says more
                raise
            self._kept = payload["step"]
        except BaseException as error:
            self.error = error

    def wait(self) -> None:
        distributed.on_rank0(self._finish)

    def _finish(self) -> None:
        self._join()
        error, self.error = self.error, None
        if error is not None:
            raise error

    def _join(self) -> None:
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def kept(self) -> int | None:
        """The step of the newest checkpoint on disk, when the one that is being written is there."""
        self._join()
        return self._kept

    def close(self) -> None:
        """At the end of a run, also after an error: a checkpoint that is being written is completed."""
        self._join()
        if self.error is not None:
            print(f"warning: {self.error}", file=sys.stderr)
        self.log.close()


def _on_host(x: Any) -> Any:
    return x.to("cpu", copy=True) if isinstance(x, Tensor) else x


def require_folder(out: Path) -> None:
    """Refuse to make a run folder again that was removed or replaced while the run was trained."""
    if not (out / "config.json").is_file():
        raise UserError(
            f"{out} was removed, or its config.json was, while the run was trained, so nothing of it can be kept "
            "there; give the same command to begin it again"
        )


def content(progress: Progress, position: dict[str, Any]) -> dict[str, Any]:
    return {"step": progress.step, "best": progress.best, "state": to_tree(progress.state), "input": position}
