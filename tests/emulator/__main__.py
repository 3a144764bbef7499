"""`python -m tests.emulator [PART OF A NAME] [--bounded] [--controls] [--budgets] [--json FILE] [--update]`

runs every case on the emulator, with --bounded those of `make test`; with --controls also kernels with a fault planted
in each. --budgets counts the launches whose costs are bounded instead, and --update records those costs.
"""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import torch

from tests.emulator import record
from tests.emulator.budgets import CHEAP, Row, budgeted, rows_of
from tests.emulator.controls import CONTROLS, problems_of
from tests.emulator.kernels import BOUNDED, cases
from tests.emulator.running import Result, result_of


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.emulator")
    parser.add_argument("part", nargs="?", default="")
    parser.add_argument("--bounded", action="store_true")
    parser.add_argument("--controls", action="store_true")
    parser.add_argument("--budgets", action="store_true")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--update", action="store_true")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if arguments.budgets or arguments.update:
        rows = costs(arguments.part, bounded=arguments.bounded)
        if arguments.update:
            record.write(rows)
        results: Any = [row._asdict() for row in rows]
    else:
        results = emulated(arguments)
    if arguments.json:
        arguments.json.write_text(json.dumps(results))


def emulated(arguments: argparse.Namespace) -> dict[str, Result]:
    every, results = cases(), {}
    planted_in = [control.case for control in CONTROLS.values()] if arguments.controls else []
    for name in dict.fromkeys([*(BOUNDED if arguments.bounded else every), *planted_in]):
        if arguments.part in name:
            results[name] = result = result_of(every[name])
            error = "" if result["error"] is None else f"{result['error']:.1e}"
            show(f"{name:76} {error:8} {result['seconds']:6}", result["problems"])
    for name, control in CONTROLS.items() if arguments.controls else ():
        if arguments.part in f"control: {name}":
            results[f"control: {name}"] = {"problems": problems_of(control)}
            show(f"control: {name}", results[f"control: {name}"]["problems"])
    return results


def costs(part: str, *, bounded: bool) -> list[Row]:
    rows = []
    for name, case in budgeted().items():
        if part in name and (not bounded or name.startswith(CHEAP)):
            rows += rows_of(name, case)
            show(f"budget: {name}", [])
    return rows


def show(title: str, problems: list[str]) -> None:
    print(title, *problems, sep="\n    ", file=sys.stderr, flush=True)


main()
