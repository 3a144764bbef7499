"""What the first process of a run writes: its configuration, the rows of its log, and checkpoints beside the steps."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from threading import Thread
from typing import Any, Self

from torch import Tensor
from torch.utils._pytree import tree_map

from eblvm.engine.config import Config
from eblvm.engine.errors import UserError
from eblvm.engine.runs import checkpoint
from eblvm.engine.runs.folder import write_config
from eblvm.engine.training import distributed, guard
from eblvm.engine.training.log import Log, NullLog


class Writer:
    """All processes call it together; the first one writes, and its mistakes, a full disk say, are everyone's.

    A checkpoint's tensors are copied to the host at once, because steps move them in place. A thread serialises,
    hashes and writes the copy while steps go on, one checkpoint at a time. What goes wrong there is raised by `wait`.
    """

    def __init__(self, config: Config, out: Path, start: int, begun: dict[str, Any] | None, kept: int | None):
        """`begun` is the first checkpoint of a run that has a parent, which it then does not need any more; `kept` the
        step of the newest checkpoint in the folder."""
        self.config, self.out, self._kept = config, out, kept
        self._thread: Thread | None = None
        self._error: BaseException | None = None
        self.log: Log | NullLog = NullLog()
        distributed.on_rank0(partial(self._begin, start, begun))

    def _begin(self, start: int, begun: dict[str, Any] | None) -> None:
        config, optimisation = self.config, self.config.optimisation
        write_config(config, self.out)
        if begun is not None:
            checkpoint.save(self.out / "checkpoints", begun["step"], begun, config.running.keep)
        title, names = f"{config.recipe} {config.method.kind}", optimisation.names()
        self.log = Log(self.out, start, optimisation.steps, title, names, config.running.logger, config.to_json())

    def row(self, step: int, values: dict[str, list[float]], measured: Mapping[str, float]) -> None:
        """A line of the log."""

        def write() -> None:
            guard.require_folder(self.out)
            self.log.write(step, values, measured)

        distributed.on_rank0(write)

    def save(self, payload: dict[str, Any]) -> None:
        """Begin to write a checkpoint, when the one before it is written. Only its "state" is copied: nothing else in
        it is moved in place."""

        def begin() -> None:
            self._finish()
            copied = payload | {"state": tree_map(_on_host, payload["state"])}
            self._thread = Thread(target=self._write, args=(copied,), name="checkpoint", daemon=True)
            self._thread.start()

        distributed.on_rank0(begin)

    def _write(self, payload: dict[str, Any]) -> None:
        try:
            guard.require_folder(self.out)
            try:
                checkpoint.save(self.out / "checkpoints", payload["step"], payload, self.config.running.keep)
            except (OSError, UserError):
                guard.require_folder(self.out)  # it may have been removed meanwhile, which says more
                raise
            self._kept = payload["step"]
        except BaseException as error:
            self._error = error

    @property
    def failed(self) -> bool:
        """Is there something that `wait` will raise?"""
        return self._error is not None

    def wait(self) -> None:
        """Return when what was saved is on disk."""
        distributed.on_rank0(self._finish)

    def _finish(self) -> None:
        self._join()
        error, self._error = self._error, None
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

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """At the end of a run, also after an error: a checkpoint that is being written is completed."""
        self._join()
        if self._error is not None:
            print(f"warning: {self._error}", file=sys.stderr)
        self.log.close()


def _on_host(x: Any) -> Any:
    return x.to("cpu", copy=True) if isinstance(x, Tensor) else x
