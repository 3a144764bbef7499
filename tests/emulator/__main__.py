"""`python -m tests.emulator [PART OF A NAME] [--bounded] [--controls] [--json FILE]`: kernels on the emulator.

Every case, or those of `make test` with --bounded; with --controls also the kernels with a fault planted in each.
"""

import argparse
import json
import sys
from pathlib import Path

import torch

from tests.emulator.controls import CONTROLS, problems_of
from tests.emulator.kernels import BOUNDED, cases
from tests.emulator.running import result_of


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.emulator")
    parser.add_argument("part", nargs="?", default="")
    parser.add_argument("--bounded", action="store_true")
    parser.add_argument("--controls", action="store_true")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    every, results = cases(), {}
    for name in BOUNDED if arguments.bounded else every:
        if arguments.part in name:
            results[name] = result = result_of(every[name])
            error = "" if result["error"] is None else f"{result['error']:.1e}"
            show(f"{name:76} {error:8} {result['seconds']:6}", result["problems"])
    for name, control in CONTROLS.items() if arguments.controls else ():
        if arguments.part in f"control: {name}":
            results[f"control: {name}"] = {"problems": problems_of(control)}
            show(f"control: {name}", results[f"control: {name}"]["problems"])
    if arguments.json:
        arguments.json.write_text(json.dumps(results))


def show(title: str, problems: list[str]) -> None:
    print(title, *problems, sep="\n    ", file=sys.stderr, flush=True)


main()
