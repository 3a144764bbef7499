"""Runs as their folders show them, without torch: what was trained, how far, how well, how large."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from eblvm.engine.config import Config
from eblvm.engine.durable import is_locked
from eblvm.engine.errors import UserError
from eblvm.engine.optim.optimisation import Optimisation
from eblvm.engine.runs import checkpoint, parent
from eblvm.engine.runs.folder import LOCK, read_config
from eblvm.engine.runs.stats import read_eval, read_rows

ROW_COLUMNS = ("replica", "seed", "lr", "last loss", "best validation", "at step")
REMOVABLE = ("drawn",)  # folders that an evaluation can make again


class RunSummary(NamedTuple):
    folder: Path
    config: Config
    step: int  # of the newest checkpoint, or of the last line of the log
    best: tuple[float, int] | None  # lowest validation loss, of the best replica, and its step
    state: str  # training, complete, stopped
    size: int  # bytes
    changed: float  # time of its newest file
    last: dict[str, Any]  # the newest line of the log
    parent: dict[str, Any] | None

    @property
    def steps(self) -> int:
        return self.config.optimisation.steps


def runs_in(folder: Path) -> list[Path]:
    """Run folders in `folder` or below it, the most recently changed last; runs are not searched for further runs."""

    def search(place: Path, depth: int) -> Iterator[Path]:
        if (place / "config.json").is_file() and not (place / "export.json").is_file():
            yield place
            return
        if depth:
            for child in sorted(place.iterdir()):
                if child.is_dir() and not child.is_symlink() and not child.name.startswith("."):
                    yield from search(child, depth - 1)

    if not folder.is_dir():
        raise UserError(f"{folder} is not a folder; give a folder of runs, such as runs")
    return sorted(search(folder, 4), key=changed)


def changed(folder: Path) -> float:
    files = (folder / "stats.jsonl", folder / "config.json", folder / "checkpoints")
    return max((f.stat().st_mtime for f in files if f.exists()), default=0.0)


def summarise(folder: Path) -> RunSummary:
    config = read_config(folder)
    rows = rows_of(folder)
    step = max([0, *(r["step"] for r in rows[-1:]), *checkpoint.steps(folder / "checkpoints")])
    scored = [(lowest(r["validation"]), r["step"]) for r in rows if "validation" in r]
    scored = [s for s in scored if math.isfinite(s[0])]
    done = "complete" if step >= config.optimisation.steps else "stopped"
    state = "training" if is_locked(folder / LOCK) else done
    size = sum(f.lstat().st_size for f in folder.rglob("*") if f.is_file())
    return RunSummary(
        folder, config, step, min(scored, default=None), state, size, changed(folder),
        rows[-1] if rows else {}, parent.read(folder),
    )  # fmt: skip


def rows_of(folder: Path) -> list[dict[str, Any]]:
    path = folder / "stats.jsonl"
    return read_rows(path) if path.is_file() else []


def evaluation_of(folder: Path) -> dict[str, Any] | None:
    return read_eval(folder / "eval.json")


def lowest(value: float | list[float]) -> float:
    """Of the replicas: those of different learning rates are never averaged."""
    return min(value) if isinstance(value, list) else value


def size_text(size: float) -> str:
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024 or unit == "GiB":
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    raise AssertionError


def age_text(then: float) -> str:
    seconds = max(0.0, time.time() - then)
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= length:
            return f"{seconds / length:.0f} {unit} ago"
    return "now"


def replica_names(optimisation: Optimisation) -> list[tuple[int, float]]:
    """(seed, learning rate) of every replica: all seeds of the first rate, then all of the second, ..."""
    return [(optimisation.seed + r, rate) for rate in optimisation.lr for r in range(optimisation.replicas)]


def replica_rows(folder: Path, config: Config) -> list[tuple[Any, ...]]:
    rows, table = rows_of(folder), []
    for i, (seed, rate) in enumerate(replica_names(config.optimisation)):

        def own(row: dict[str, Any], name: str, place: int = i) -> float:
            value = row[name]
            return value[place] if isinstance(value, list) else value

        losses = [own(row, "loss") for row in rows if "loss" in row]
        scored = [(own(row, "validation"), row["step"]) for row in rows if "validation" in row]
        best = min(scored, default=(None, None))
        table.append((i, seed, rate, losses[-1] if losses else None, *best))
    return table


def removable(folder: Path) -> list[Path]:
    """Files that a run does not need: checkpoints before the newest, damaged and half-written ones, drawn samples."""
    places = sorted((folder / "checkpoints").glob("step-*.pt"))
    old = places[:-1]
    files = [f for path in old for f in (path, path.with_name(path.name + ".sha256")) if f.exists()]
    files += [*(folder / "checkpoints").glob("*.damaged"), *folder.rglob(".*.tmp")]
    for name in REMOVABLE:
        files += [f for f in (folder / name).rglob("*") if f.is_file()]
    return files
