"""`python -m tests.emulator [PART OF A NAME] [--bounded] [--json FILE]`: the kernels' cases, emulated."""

import argparse
import json
import sys
from pathlib import Path

import torch

from tests.emulator.kernels import bounded, cases
from tests.emulator.running import result_of


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.emulator")
    parser.add_argument("part", nargs="?", default="")
    parser.add_argument("--bounded", action="store_true", help="the selection of 'make test'")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    every, results = cases(), {}
    names = bounded() if arguments.bounded else list(every)
    for name in names:
        if arguments.part not in name:
            continue
        results[name] = result = result_of(every[name])
        error = "" if result["error"] is None else f"{result['error']:.1e}"
        print(f"{name:76} {error:8} {result.get('seconds', '')}", *result["problems"], sep="\n    ", file=sys.stderr)
    if arguments.json:
        arguments.json.write_text(json.dumps(results))


main()
