"""`eblvm bench compare BASE`: this working tree against another commit, on this machine, by turns.

Both are installed from their own sources into a throw-away folder and run in a process each. Saved bytes, peak bytes,
FLOPs, operator calls and instructions may grow by 2 %. Time fails if the whole confidence interval of head/base is
above 1 % (`intervals`), and is so again in a second block with fresh processes that measures the suspects alone.
"""

import contextlib
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

from eblvm.bench.tools import building, counting, gates, record
from eblvm.bench.tools.intervals import TIME_ALLOWED, Interval, median_ratio
from eblvm.bench.tools.memory import mib
from eblvm.bench.tools.timing import median
from eblvm.bench.tools.version import Starter, Version, cases_of_both
from eblvm.engine import tables
from eblvm.engine.machine import ENDINGS

SCHEMA = "eblvm-compare/1"
MINUTES = 10.0
LAUNCHES = (
    12  # pairs of fresh processes in a block, if there is time: a process can stay 3 % slower by its memory layout
)
PER_STARTER = 4  # launches that share torch's place in memory
LAUNCH_S, CASE_S = 4.0, 0.5  # what a launch needs, and what a case in it: with less it would mostly start up
CONFIRM_S = 2.0  # of a suspect in a launch of the second block, at most
SCREENING = 0.55  # of the time that is left when both are built; the rest is for the second block
BLOCK_MS = 5.0  # of a reading: the shorter, the more of the machine's load is the same for both
HEADER = (
    "case", "base_ms", "head_ms", "head/base", "from", "to", "", "base saved_mib", "head saved_mib", "base peak_mib",
    "head peak_mib", "base ops", "head ops",
)  # fmt: skip


@dataclass
class Measured:
    """One case: both versions' deterministic figures, readings in ms, and ratios head/base by launch."""

    base: dict[str, Any]
    head: dict[str, Any]
    base_ms: list[float] = field(default_factory=list)
    head_ms: list[float] = field(default_factory=list)
    ratios: list[list[float]] = field(default_factory=list)
    confirmed: Interval | None = None  # of the second block, where the first one is suspicious

    @property
    def interval(self) -> Interval:
        return median_ratio(self.ratios)


@dataclass(frozen=True)
class Budget:
    """The time of a comparison; with `rounds`, the number of rounds in a block instead."""

    minutes: float = MINUTES
    rounds: int | None = None
    start: float = field(default_factory=time.monotonic)

    def left(self) -> float:
        return self.start + 60 * self.minutes - time.monotonic()

    def launches(self, seconds: float, cases: int) -> int:
        if self.rounds is not None:
            return max(1, min(LAUNCHES, self.rounds // 2))
        return max(2, min(LAUNCHES, int(seconds / (LAUNCH_S + CASE_S * cases))))


def run(
    base: str,
    here: Path,
    suite: str = "gates",
    budget: Budget | None = None,
    only: str = "",
    instructions: str = "auto",
    progress: bool = True,
) -> tuple[dict[str, Measured], list[str]]:
    """({case: what was measured}, sentences about every gate that head fails). Head is the working tree around `here`;
    `only` chooses the cases whose name contains it, or one of several with commas between."""
    budget = budget or Budget()

    def say(text: str) -> None:
        if progress:
            print(f"[{time.monotonic() - budget.start:4.0f} s] {text}", file=sys.stderr, flush=True)

    if budget.rounds is None:
        say(f"at most {budget.minutes:g} minutes (--minutes)")
    repository, commit = building.find(base, here)
    name = f"base {base}"
    with endings_clean_up(), building.scratch() as root:
        trees = {name: building.checkout(repository, commit, root / "tree"), "head": repository}
        sites = {n: building.build(tree, root / n.split()[0], root, n, say) for n, tree in trees.items()}

        def pair(stack: contextlib.ExitStack, starter: Starter) -> tuple[Version, Version]:
            of_base, of_head = (stack.enter_context(Version(n, site, root, starter)) for n, site in sites.items())
            return of_base, of_head

        with contextlib.ExitStack() as stack:
            versions = pair(stack, stack.enter_context(Starter()))
            both = cases_of_both(*versions, suite, only)
            say(f"figures of {len(both)} cases")
            measured = {case: Measured(*(v.ask(do="footprint", case=case) for v in versions)) for case in both}
        say(counting.count(instructions, sites, root, suite, measured, say))
        block(pair, suite, measured, budget, SCREENING * budget.left(), say)
        suspects = {case: Measured(m.base, m.head) for case, m in measured.items() if m.interval.suspicious}
        if suspects:
            say(f"{len(suspects)} of {len(measured)} cases look slower: once more, with fresh processes")
            block(
                pair,
                suite,
                suspects,
                budget,
                min(budget.left(), LAUNCHES * (LAUNCH_S + CONFIRM_S * len(suspects))),
                say,
            )
            for case, again in suspects.items():
                measured[case].confirmed = again.interval
    return measured, failures(measured)


@contextlib.contextmanager
def endings_clean_up() -> Iterator[None]:
    """Let SIGTERM and SIGHUP unwind like SIGINT, so that processes end and folders are removed."""

    def leave(number: int, frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    before = {s: signal.signal(s, leave) for s in ENDINGS if s != signal.SIGINT}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def block(
    pair: Callable[[contextlib.ExitStack, Starter], tuple[Version, Version]],
    suite: str,
    measured: dict[str, Measured],
    budget: Budget,
    seconds: float,
    say: building.Say,
) -> None:
    """Measure in fresh processes. The time left of `seconds` after their starts is divided among them equally: a launch
    with few rounds has the same weight as one with many."""
    count, end = budget.launches(seconds, len(measured)), time.monotonic() + seconds
    import_s = open_s = 0.0  # the longest starts so far
    for first in range(0, count, PER_STARTER):
        begin = time.monotonic()
        with Starter() as starter:
            import_s = max(import_s, time.monotonic() - begin)
            for number in range(first, min(count, first + PER_STARTER)):
                begin = time.monotonic()
                if number >= 2 and budget.rounds is None and begin > end:
                    return  # the machine is slower than assumed
                say(f"launch {number + 1} of {count}: {len(measured)} cases by turns")
                with contextlib.ExitStack() as stack:
                    versions = pair(stack, starter)
                    for version in versions:
                        version.pin(number)
                        version.open(suite)
                    now = time.monotonic()
                    open_s, left = max(open_s, now - begin), count - number
                    imports = (count - 1) // PER_STARTER - number // PER_STARTER
                    window = (end - now - import_s * imports - open_s * (left - 1)) / left
                    least = budget.rounds // count if budget.rounds else 2
                    launch(versions, measured, number, least, now + window if budget.rounds is None else 0.0)


def launch(
    versions: tuple[Version, Version], measured: dict[str, Measured], number: int, least: int, until: float
) -> None:
    """Measure `least` rounds over all cases, then more until a time."""
    extra = {"block_ms": BLOCK_MS} if all("block_ms" in v.extras for v in versions) else {}
    for m in measured.values():
        m.ratios.append([])
    done = 0
    while done < least or time.monotonic() < until:
        for case, m in measured.items():
            take_round(versions, case, m, done + number, extra)
        done += 1


def take_round(
    versions: tuple[Version, Version], case: str, measured: Measured, number: int, extra: dict[str, Any]
) -> None:
    """Read base, head, head, base, or the reverse; the faster reading of each counts, as load only slows."""
    readings: tuple[list[float], list[float]] = ([], [])
    for side in (0, 1, 1, 0) if number % 2 == 0 else (1, 0, 0, 1):
        readings[side].append(versions[side].ask(do="time", case=case, **extra)["ms"])
    measured.base_ms += readings[0]
    measured.head_ms += readings[1]
    measured.ratios[-1].append(min(readings[1]) / min(readings[0]))


def failures(measured: dict[str, Measured]) -> list[str]:
    sentences = []
    for name, m in measured.items():
        sentences += [str(change) for change in gates.grown(name, m.head, m.base)]
        if m.confirmed is not None and m.confirmed.suspicious:
            sentences.append(
                f"{name}: time of head/base {m.interval}, with fresh processes {m.confirmed}; "
                f"allowed is {100 * TIME_ALLOWED:.0f} % at the lower end"
            )
    return sentences


def format_table(measured: dict[str, Measured]) -> str:
    rows: list[Sequence[Any]] = []
    for name, m in measured.items():
        interval = [f"{x:.3f}" for x in m.interval]
        memory = [mib(side[figure]) for figure in ("saved_bytes", "peak_bytes") for side in (m.base, m.head)]
        times = [median(m.base_ms), median(m.head_ms), *interval, m.interval.verdict]
        rows.append([name, *times, *memory, m.base["ops"], m.head["ops"]])
    return tables.text(HEADER, rows)


def as_record(base: str, suite: str, measured: dict[str, Measured], command: str) -> dict[str, Any]:
    rows = [
        {
            "case": name,
            "base_ms": median(m.base_ms),
            "head_ms": median(m.head_ms),
            "head_to_base": list(m.interval),
            "confirmed": m.confirmed and list(m.confirmed),
            "rounds": [len(launch) for launch in m.ratios],
            "base": m.base,
            "head": m.head,
        }
        for name, m in measured.items()
    ]
    return record.make(SCHEMA, f"compare-{suite}", command, "cpu", {"base": base, "rows": rows})
