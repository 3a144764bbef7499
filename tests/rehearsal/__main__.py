"""`python -m tests.rehearsal [PART OF A NAME] [--sites] [--json FILE] [--update]`: the cases on fake cuda tensors.

--sites names the lines that launch; --update writes the launches to bench/records/launches.json; --captures captures
every case as a CUDA graph, on one process and on two, where otherwise a few are.
"""

from tests.rehearsal import fake_cuda

fake_cuda.install()

import argparse  # noqa: E402
import json  # noqa: E402
import sys  # noqa: E402
import traceback  # noqa: E402
from collections.abc import Callable  # noqa: E402
from functools import partial  # noqa: E402
from pathlib import Path  # noqa: E402
from typing import Any  # noqa: E402

import torch  # noqa: E402

from tests.rehearsal import record, watch  # noqa: E402

watch.install()

from tests.rehearsal.apex import OPTIMIZERS  # noqa: E402
from tests.rehearsal.capture_faults import CAPTURE_FAULTS, found_in_a_capture  # noqa: E402
from tests.rehearsal.captures import captures  # noqa: E402
from tests.rehearsal.cases import cases  # noqa: E402
from tests.rehearsal.doctor import self_test  # noqa: E402
from tests.rehearsal.faults import FAULTS, found_in  # noqa: E402
from tests.rehearsal.means import MEANS  # noqa: E402
from tests.rehearsal.parts import PARTS, rehearsed_part  # noqa: E402
from tests.rehearsal.runs import RUNS  # noqa: E402
from tests.rehearsal.steps import rehearsed  # noqa: E402


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.rehearsal")
    parser.add_argument("part", nargs="?", default="")
    parser.add_argument("--sites", action="store_true")
    parser.add_argument("--captures", action="store_true")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--update", action="store_true")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    results = {}
    for case in cases().values():
        if arguments.part not in case.name:
            continue
        results[case.name] = facts = figures(case, arguments.sites)
        print(f"{case.name:46} {facts['launches']:6} launches", *facts["faults"], sep="\n    ", file=sys.stderr)
        for name, number in facts.pop("sites")[:60]:
            print(f"{number:6} {name}", file=sys.stderr)
    launches = {name: facts["launches"] for name, facts in results.items()}
    parts = {name: partial(rehearsed_part, part) for name, part in PARTS.items()}
    rehearsals = {**parts, **MEANS, **OPTIMIZERS, **RUNS, **captures(arguments.captures), "doctor --gpu": self_test}
    for name, part in rehearsals.items():
        if arguments.part in name:
            results[name] = {"faults": faults_of(part)}
            print(name, *results[name]["faults"], sep="\n    ", file=sys.stderr)
    found = {f"fault: {name}": partial(found_in, fault) for name, fault in FAULTS.items()}
    found |= {f"fault in a capture: {name}": partial(found_in_a_capture, name) for name in CAPTURE_FAULTS}
    for name, fault in found.items():
        if arguments.part in name:
            results[name] = {"faults": fault()}
            print(name, *results[name]["faults"], sep="\n    ", file=sys.stderr)
    if arguments.json:
        arguments.json.write_text(json.dumps(results))
    if arguments.update:
        record.write(launches)


def figures(case: Any, sites: bool) -> dict[str, Any]:
    """Return a case's launches and its faults, in words."""
    try:
        seen = rehearsed(case.config, case.shape, sites)
    except Exception:
        return {"launches": 0, "faults": [traceback.format_exc()], "sites": []}
    faults = [*seen.problems, *(f"waits for the device: {w}" for w in seen.waits), *seen.copies]
    return {"launches": sum(seen.launches.values()), "faults": faults, "sites": seen.sites.most_common()}


def faults_of(part: Callable[[], list[str]]) -> list[str]:
    try:
        return part()
    except Exception:
        return [traceback.format_exc()]


main()
