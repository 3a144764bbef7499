"""A check of the self-test and its result, and the bounds of checks, which follow the rounding measured on the CPU."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple


class Measured(NamedTuple):
    figure: float
    bound: float | None = None  # None: only recorded
    unit: str = "relative"


class SelfCheck(NamedTuple):
    name: str
    measure: Callable[[], Measured]


class Finding(NamedTuple):
    """One check's figure, bound and unit, or the problem that it raised."""

    check: str
    figure: float | None
    bound: float | None
    unit: str
    problem: str = ""

    @property
    def passed(self) -> bool:
        return not self.problem and (self.bound is None or (self.figure is not None and self.figure <= self.bound))


# Another device adds in another order, has other exponentials, and may make an fp32 product of three bf16 ones, whose
# errors of 1e-5 in a gradient read 1e-4 at its worst parameter. What a fault reads is 2 (a sign) or 5e-2 (5 %).
MARGIN = 30
# In 16 bits the error is mostly that of the same roundings of the same numbers.
HALF_MARGIN = 3
NAMED = 8  # failed checks that the last line names


def bound_of(rounding: float, least: float) -> float:
    """Return the bound of an error whose like on the CPU, of the same precision against fp64, is `rounding`."""
    return max(least, MARGIN * rounding)


def run(checks: Iterable[SelfCheck], begin: Callable[[str], None] = lambda name: None) -> Iterator[Finding]:
    """Run checks, each after `begin` of its name. One that raises has failed."""
    for check in checks:
        begin(check.name)
        try:
            yield Finding(check.name, *check.measure())
        except Exception:
            yield Finding(check.name, None, None, "", traceback.format_exc(limit=-3))


def verdict(findings: Sequence[Finding], where: str, if_passed: str, if_failed: str) -> str:
    """Return the sentence that ends a report: how many checks passed or which failed, and what to do."""
    names = [finding.check for finding in findings if not finding.passed]
    if not names:
        return f"all {len(findings)} checks passed on {where}. Next: {if_passed}"
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    listed = "; ".join(names[:NAMED]) + more
    return f"{len(names)} of {len(findings)} checks failed on {where}: {listed}. Next: {if_failed}"
