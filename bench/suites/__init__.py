"""The suites of `eblvm bench`, one a file: each says its name, its options, how it is measured and what it must reach.

A suite's options are all that `eblvm bench NAME` reads. A new suite is a new file here: `SUITES` finds it, and the
command line, its help and `eblvm bench all` follow. The measuring is done in `bench/measurements`, which imports torch;
a file here must not read a name of it while it is imported, since the help imports all of them.
"""

from __future__ import annotations

from dataclasses import fields
from typing import Any, ClassVar

from eblvm.bench.tools import device as devices
from eblvm.bench.tools.records import Record
from eblvm.engine import tables
from eblvm.engine.options import Options, discovered, option

GROUPS = {  # of the help, in its order
    "speed": "Engine against the naive procedure (--contestants: against other libraries)",
    "step": "The parts and the growth of a step",
    "newton": "The Newton response",
    "runs": "Results of finished runs, and studies",
    "bench": "The bench itself",
}


class Suite(Options):
    """A measurement that gives a record. `kind` is its name, `group` its place in the help."""

    help: ClassVar[str] = ""
    measurement: ClassVar[Any] = None  # a module: run(**options), table or format_table (several), perhaps problems
    contested: ClassVar[bool] = False  # other libraries do it too: it has --contestants
    standard: ClassVar[bool] = False  # a part of `eblvm bench all`

    def run(self) -> Record:
        """The record. Raises `AgreementError` where a result is wrong: no speed is then reported."""
        return self.measurement.run(**self.arguments())

    def arguments(self) -> dict[str, Any]:
        """The options by name; the device checked and set up."""
        given = {field.name: getattr(self, field.name) for field in fields(self)}
        return given | ({"device": devices.chosen(given["device"])} if "device" in given else {})

    def format_table(self, result: Record) -> str:
        if hasattr(self.measurement, "format_table"):
            return self.measurement.format_table(result)
        return tables.text(*self.measurement.table(result))

    def problems(self, result: Record) -> list[str]:
        """The bars that a record misses, a sentence each."""
        return self.measurement.problems(result) if hasattr(self.measurement, "problems") else []


def round_count(default: int) -> Any:
    return option(default, "readings of every step", low=1)


def device_name() -> Any:
    return option("cpu", "cpu or cuda (cuda:1, ...)")


def run_folders(help: str) -> Any:
    return option((), help + ", with commas between")


SUITES = discovered(__name__, __path__, Suite)
