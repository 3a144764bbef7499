"""The request for an evaluation, and a section of one."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from eblvm.engine.evaluation.figures import Figures
from eblvm.engine.runs.saved import SavedRun

SHOWN = 100  # samples in pictures
JUDGED = 2000  # samples of each set that out-of-distribution detection looks at, and of the t-SNE picture


@dataclass(frozen=True)
class EvalOptions:
    """The options of `eblvm eval`; the defaults need neither files nor minutes of sampling."""

    chains: int = 2000
    temperatures: int = 2000
    ais: bool = False  # even where log Z is exact
    draw: int | None = None  # samples for pictures and neighbours; none: 100, of a deep model only with a FID
    fid: int | None = None  # samples of FID and KID
    samples: Path | None = None  # from here, not drawn
    reference: int | None = None  # training images to compare with; none: all
    inception: Path | None = None
    ood: Mapping[str, Path] = field(default_factory=dict)
    kind: str | None = None  # kind of sample; then steps and seed of the sampler
    steps: int | None = None
    seed: int = 0
    again: bool = False


class Section(NamedTuple):
    name: str
    settings: dict[str, Any]  # plain JSON
    compute: Callable[[], list[Figures]]  # by replica, or of the first one only


def of_first(run: SavedRun) -> str:
    """For the titles of pictures, which are of the first replica."""
    return f"; {run.config.optimisation.names()[0]}" if run.config.replicated else ""
