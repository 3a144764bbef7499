"""The result of one check of the self-test."""

import traceback
from collections.abc import Callable
from typing import NamedTuple


class Finding(NamedTuple):
    """One check: its figure, the bound of the figure (None: only recorded), and the problem if it failed."""

    check: str
    figure: float | None
    bound: float | None
    unit: str
    problem: str = ""

    @property
    def passed(self) -> bool:
        return not self.problem and (self.bound is None or (self.figure is not None and self.figure <= self.bound))


def guarded(check: str, bound: float | None, unit: str, measure: Callable[[], float]) -> Finding:
    """Run a check; one that raises has failed."""
    try:
        return Finding(check, measure(), bound, unit)
    except Exception:
        return Finding(check, None, bound, unit, traceback.format_exc(limit=-3))
