"""What a check of the self-test finds."""

import traceback
from collections.abc import Callable
from typing import NamedTuple


class Finding(NamedTuple):
    """One check: its figure, what it may be at most (none: it is for the record), and what went wrong."""

    check: str
    figure: float | None
    bound: float | None
    unit: str
    problem: str = ""

    @property
    def passed(self) -> bool:
        return not self.problem and (self.bound is None or (self.figure is not None and self.figure <= self.bound))


def guarded(check: str, bound: float | None, unit: str, measure: Callable[[], float]) -> Finding:
    """A check that raises is a failed one."""
    try:
        return Finding(check, measure(), bound, unit)
    except Exception:
        return Finding(check, None, bound, unit, traceback.format_exc(limit=-3))
