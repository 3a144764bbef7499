"""Where and how a run computes, and what it writes: options that do not depend on the method."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from eblvm.engine.errors import UserError
from eblvm.engine.options import Options, option

if TYPE_CHECKING:
    from eblvm.engine.config import Config


@dataclass(frozen=True)
class Running(Options):
    group = "running"

    device: str = option("cpu", "cpu or cuda (cuda:0, cuda:1, ...)", mathematical=False)
    deterministic: bool = option(
        False, "the same bits from run to run on a GPU too, at some cost; the CPU gives them anyway", mathematical=False
    )
    timeout: float = option(
        30.0,
        "minutes that a process of several waits for the others before it gives up",
        above=0,
        high=1e6,
        mathematical=False,
    )
    threads: int = option(
        1,
        "CPU threads per process; their number changes results by rounding only",
        low=1,
        high=1024,
        mathematical=False,
    )
    dtype: str = option("float32", "of parameters and data", choices=("float32", "float64"))
    validations: int = option(10, "evaluations of the validation loss in a run, 0 for none", low=0)
    log_every: int = option(100, "steps between lines of stats.jsonl", low=1, high=2**31 - 1, mathematical=False)
    validate_minutes: float = option(
        0.0, "also validate after so many minutes; which model is the best then depends on the machine; 0: never", low=0
    )
    preview_every: int | None = option(
        None,
        "steps between pictures in RUN/previews and the loggers, 0 for none; none: at validations, once a minute",
        low=0,
        high=2**31 - 1,
        mathematical=False,
    )
    logger: tuple[str, ...] = option(
        ("tensorboard",), "where curves go", choices=("tensorboard", "wandb", "mlflow"), mathematical=False
    )
    checkpoint_every: int = option(1000, "steps between checkpoints", low=1, high=2**31 - 1, mathematical=False)
    checkpoint_minutes: float = option(
        10.0, "also save a checkpoint after so many minutes; 0: never", low=0, mathematical=False
    )
    keep: int = option(2, "checkpoints kept", low=1, mathematical=False)

    @property
    def on_cuda(self) -> bool:
        return self.device.startswith("cuda")

    def check(self, config: Config) -> None:
        if not re.fullmatch(r"cpu|cuda(:\d+)?", self.device):
            raise UserError(f"got device={self.device!r}, expected cpu or cuda (cuda:0, cuda:1, ...)")
