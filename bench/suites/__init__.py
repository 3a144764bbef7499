"""The suites of `eblvm bench`, one a file: each says its name, its options, how it is measured and what it must reach.

A suite's options are all that `eblvm bench NAME` reads. A new suite is a new file here: `SUITES` finds it, and the
command line, its help and `eblvm bench all` follow. The measuring is done in `bench/measurements`, which imports torch;
a file here must not read a name of it while it is imported, since the help imports all of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from eblvm.engine.options import Options, discovered, option

Record = dict[str, Any]

GROUPS = {  # of the help, in its order
    "speed": "Engine against the naive procedure (--contestants: against other libraries)",
    "step": "The parts and the growth of a step",
    "newton": "The Newton response",
    "runs": "Results of finished runs, and studies",
    "bench": "The bench itself",
}


@dataclass(frozen=True)
class Suite(Options):
    """A measurement that gives a record. `kind` is its name, `group` its place in the help."""

    help: ClassVar[str] = ""
    contested: ClassVar[bool] = False  # other libraries do it too: it has --contestants
    standard: ClassVar[bool] = False  # a part of `eblvm bench all`

    def run(self) -> Record:
        """The record. Raises `AgreementError` where a result is wrong: no speed is then reported."""
        raise NotImplementedError

    def format_table(self, result: Record) -> str:
        raise NotImplementedError

    def problems(self, result: Record) -> list[str]:
        """The bars that a record misses, a sentence each."""
        return []


def round_count(default: int) -> Any:
    return option(default, "readings of every step", low=1)


def device_name() -> Any:
    return option("cpu", "cpu or cuda (cuda:1, ...)")


def run_folders(help: str) -> Any:
    return option((), help + ", with commas between")


SUITES = discovered(__name__, __path__, Suite)
