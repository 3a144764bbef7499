"""One version of the engine as a process that measures on request: `eblvm bench compare` runs two by turns.

JSON lines on stdin and stdout: {"do": "open", "suite": S} -> {"protocol", "source", "cases", "extras"}; {"do":
"footprint", "case": C} -> deterministic figures; {"do": "time", "case": C} -> {"ms"}. Each version brings its own cases
and set-up, so that a change of the engine's interfaces does not stop a comparison; the protocol number changes with
this text only. Extras, which older versions do not know: "block_ms" of `time` is how long a reading is; {"do":
"repeat", "case": C, "count": n} runs n steps of a warm case; "instructions" is a figure of the footprint where the
machine counts them.
"""

import json
import os
import sys
from pathlib import Path
from typing import Any, TextIO

import torch

import eblvm.engine
from eblvm.bench.contestants.steps import CaseStep
from eblvm.bench.tools import gates, instructions, registry
from eblvm.bench.tools.timing import BLOCK_MS, elapsed_ms, warmed_repeats
from eblvm.engine.machine import keep_freed_memory

PROTOCOL = 1
EXTRAS = ("block_ms", "repeat", "instructions")


class Worker:
    def __init__(self) -> None:
        self.cases: dict[str, registry.Case] = {}
        self.steps: dict[str, tuple[CaseStep, int]] = {}

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        if request["do"] == "open":
            self.cases = {case.name: case for case in registry.cases(request["suite"])}
            source = str(Path(eblvm.engine.__file__).parents[2])
            return {"protocol": PROTOCOL, "source": source, "cases": list(self.cases), "extras": EXTRAS}
        name = request["case"]
        if request["do"] == "footprint":
            step = CaseStep(self.cases[name])
            return gates.measure(step) | {"instructions": instructions.per_step(step)}
        if name not in self.steps:
            step = CaseStep(self.cases[name])
            block_ms = request.get("block_ms", BLOCK_MS)
            self.steps[name] = (step, 1 if request["do"] == "repeat" else warmed_repeats(step, "cpu", block_ms))
        step, repeats = self.steps[name]
        if request["do"] == "repeat":
            return {"ms": elapsed_ms(step, request["count"], "cpu")}
        return {"ms": elapsed_ms(step, repeats, "cpu")}


def serve(requests: TextIO, answers: TextIO) -> None:
    torch.set_num_threads(1)
    worker = Worker()
    for line in requests:
        print(json.dumps(worker.answer(json.loads(line))), file=answers, flush=True)


def main() -> None:
    with os.fdopen(os.dup(1), "w") as answers:
        os.dup2(2, 1)  # whatever else prints must not get between the answers
        with keep_freed_memory():
            serve(sys.stdin, answers)


if __name__ == "__main__":
    main()
