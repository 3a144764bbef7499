"""The run whose weights another started from: as `--init` names it, and as the fork records it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

from eblvm.engine.durable import write_atomic
from eblvm.engine.errors import UserError

PARENT = "parent.json"
SAVED_MODELS = ("best", "last", "ema")  # of a run: by validation, at its end, averaged


class Parent(NamedTuple):
    """A model of a run, or of an exported folder."""

    folder: Path
    model: str = "last"
    step: int | None = None  # of the checkpoint; none: the newest

    @classmethod
    def parse(cls, text: str) -> Parent:
        """RUN, RUN@STEP, or RUN@best, RUN@last, RUN@ema."""
        path, at, which = text.rpartition("@")
        if not at or (Path(text) / "config.json").exists():
            return cls(Path(text))
        if which.isdigit():
            return cls(Path(path), step=int(which))
        if which not in SAVED_MODELS:
            raise UserError(f"got --init {text}, expected RUN, RUN@STEP, or RUN@best, RUN@last or RUN@ema")
        return cls(Path(path), which)

    def same_as(self, record: dict[str, Any]) -> bool:
        mine = (str(self.folder.resolve()), self.model)
        return mine == (record.get("run"), record.get("model")) and self.step in (None, record.get("checkpoint"))


def write(folder: Path, record: dict[str, Any]) -> None:
    write_atomic(folder / PARENT, (json.dumps(record, indent=2) + "\n").encode())


def read(folder: Path) -> dict[str, Any] | None:
    """The record that a fork has of its parent; None for a run that began with its own weights."""
    path = folder / PARENT
    if not path.is_file():
        return None
    try:
        record = json.loads(path.read_text())
        if isinstance(record, dict) and isinstance(record["run"], str) and record["model"] in SAVED_MODELS:
            return record
    except (ValueError, KeyError):
        pass
    raise UserError(f"{path} is damaged; restore it, or remove it if the run has a checkpoint")


def begins_at(given: Parent | None, out: Path) -> Parent | None:
    """The parent of the run in `out`: by --init, or as recorded before its first checkpoint; None: it has none."""
    record, has_checkpoint = read(out), any((out / "checkpoints").glob("step-*.pt"))
    if given is not None and record is None and (has_checkpoint or (out / "config.json").exists()):
        raise UserError(f"{out} contains a run that began without --init; give another --out, or remove --init")
    if given is not None and record is not None and not given.same_as(record):
        raise UserError(
            f"{out} contains a run that began from {record['run']} (its {record['model']} model, step "
            f"{record['step']}), got --init {given.folder}; give another --out, or remove --init"
        )
    if has_checkpoint:
        return None
    return given if record is None else Parent(Path(record["run"]), record["model"], record["checkpoint"])
