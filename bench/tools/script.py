"""`python -m eblvm.bench.suites.NAME ROUNDS [--json FILE]`: a suite that is no part of `eblvm bench`, as a script."""

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

from eblvm.bench.tools import record
from eblvm.engine import tables

Record = dict[str, Any]
Table = tuple[list[str], list[list[Any]]]


def main(description: str | None, run: Callable[[int], Record], table: Callable[[Record], Table]) -> None:
    """Run it for so many rounds, print its table, and write its record where asked."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rounds", type=int, help="readings of every step")
    parser.add_argument("--json", type=Path, help="write the record here; a folder names it itself")
    arguments = parser.parse_args()
    result = run(arguments.rounds)
    print(tables.text(*table(result)))
    if arguments.json:
        print(f"wrote {record.write(result, arguments.json)}")
