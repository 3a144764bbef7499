"""What a run is made of, and where it is."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from eblvm.engine.config import Config
from eblvm.engine.data.dataset import Dataset
from eblvm.engine.methods.base import Nets, State
from eblvm.engine.nets.base import Energy
from eblvm.engine.nets.posteriors import Posterior
from eblvm.engine.runs.saved import SavedRun
from eblvm.engine.training.distributed import Flags
from eblvm.engine.training.fork import Fork

Say = Callable[[str], None]
Preview = Callable[[SavedRun, bool], dict[str, Path]]  # of a run, and whether it may take long: pictures by name


class Parts(NamedTuple):
    """Everything that a run is made of."""

    config: Config
    dataset: Dataset
    nets: Nets
    out: Path
    say: Say
    here: slice  # this process's part of every batch
    flags: Flags  # what any process asks for
    fork: Fork | None
    preview: Preview | None
    custom: tuple[Energy | None, Posterior | None]  # models of the user's own


class Progress(NamedTuple):
    """Where a run is: its state after `step` steps, and the best model so far."""

    step: int
    state: State
    best: dict[str, Any]
