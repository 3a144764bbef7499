"""The contestants of `eblvm bench SUITE --contestants`: every file `by_*.py` of this folder registers its own.

A contestant does a task with its library's own means: from the engine's parameters and for the engine's noise when it
is checked, with noise of its own when it is timed. One that is not installed is a sentence.
"""

import importlib
import importlib.util
import pkgutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from torch import Tensor

from eblvm.engine.methods.base import State
from eblvm.engine.types import Params

EXTRA = "pip install 'eblvm[contestants]'"
TOLERANCE = 1e-8  # of the check, relative to the largest entry of each parameter's gradient


class Entrant(Protocol):
    """A contestant at the start of a training case."""

    def gradient(self, state: State, v: Tensor, noise: Any) -> Params:
        """theta's gradient from the engine's state and noise; the state does not move."""

    def __call__(self) -> None:
        """One training step with noise of its own."""

    def inputs(self) -> list[Tensor] | None:
        """The tensors that exist before a step; None if torch cannot see what the step allocates."""


Enter = Callable[[Any], Any]


@dataclass(frozen=True)
class Contestant:
    """`enter` makes an entrant for a case, or returns None if the library has no means for it. A `deviation` says why
    its result differs from the engine's; without one the two must agree."""

    name: str
    enter: Enter
    needs: str  # the module that it imports
    tolerance: float
    note: str
    deviation: str
    task: str = "step"  # what it does in its suites

    def absence(self) -> str | None:
        """The reason why it cannot run here, as one sentence."""
        if importlib.util.find_spec(self.needs):
            return None
        return f"{self.needs} is not installed: {EXTRA}"


ROSTER: dict[str, list[Contestant]] = {}  # by suite


def contestant(
    name: str,
    *suites: str,
    task: str = "step",
    needs: str = "torch",
    tolerance: float = TOLERANCE,
    note: str = "",
    deviation: str = "",
) -> Callable[[Enter], Enter]:
    """Register a function that enters the cases of these suites."""

    def register(enter: Enter) -> Enter:
        for suite in suites:
            ROSTER.setdefault(suite, []).append(Contestant(name, enter, needs, tolerance, note, deviation, task))
        return enter

    return register


def of_suite(suite: str) -> list[Contestant]:
    """The contestants of a suite, in the order of their files. A file imports its library when it enters a case."""
    for name in sorted(module.name for module in pkgutil.iter_modules([str(Path(__file__).parent)])):
        if name.startswith("by_"):
            importlib.import_module(f"eblvm.bench.contestants.{name}")
    return ROSTER.get(suite, [])
