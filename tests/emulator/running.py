"""Runs the cases on the emulator: errors against the reference, and what the shadow found."""

import time
import traceback
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves
from triton.runtime.errors import OutOfResources

from eblvm.kernels.runtime import tiles, tuning
from tests.emulator.kernels.case import Case, doubled
from tests.emulator.launches import Emulator

Result = dict[str, Any]


def result_of(case: Case) -> Result:
    """Return a case's largest error, and its problems: also an error that is too large, or what was raised."""
    begin = time.process_time()
    result: Result = {"error": None, "problems": [], "notes": []}
    try:
        emulator, result["error"] = emulated(case)
    except Exception as raised:
        result["problems"] = [f"{type(raised).__name__}: {last_line(raised)}"]
    else:
        result["problems"] = list(dict.fromkeys(emulator.problems))
        if not result["error"] <= case.allowed:
            result["problems"].append(f"error of {result['error']:.1e}, allowed are {case.allowed:.1e}")
        if not emulator.launches:
            result["problems"].append("no kernel was launched")
        result["notes"] = sorted({note for launched in emulator.launches for note in launched.notes})
    return result | {"seconds": round(time.process_time() - begin, 1)}


def emulated(case: Case) -> tuple[Emulator, float]:
    ranked, given = tiles.ranked, case.given()

    def split(*arguments: Any) -> tuple[tiles.Tiles, ...]:
        return (ranked(*arguments)[0]._replace(split=case.split),)

    choice = split if case.split else ranked
    visible = tiles.MOST_VISIBLE if case.fits else dict.fromkeys(tiles.MOST_VISIBLE, 4)
    tiles.set_dot_precision(case.numbers.precision)
    try:
        with (
            patch.object(tiles, "ranked", choice),
            patch.object(tuning, "launch", launch),
            patch.object(tiles, "MOST_VISIBLE", visible),
            Emulator(case.capability) as emulator,
        ):
            got = case.launch(given)
    finally:
        tiles.set_dot_precision(None)
    return emulator, error_of(got, case.expected(doubled(given)))


def launch(problem: tiles.Problem, like: Tensor, run: tuning.Run) -> None:
    """Take the model's first choice that a multiprocessor has memory for, as `tuning.launch` does without a clock."""
    failed: list[OutOfResources] = []
    for one in tuning.ranked(problem, like):
        try:
            return run(one)
        except OutOfResources as error:
            failed.append(error)
    raise failed[0]


def error_of(got: Any, expected: Any) -> float:
    """The largest of all tensors, each relative to its largest expected number; infinite where one is not finite."""
    errors = [0.0]
    pairs = [[leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)] for tree in (got, expected)]
    for g, e in zip(*pairs, strict=True):
        if g.shape != e.shape:
            return float("inf")
        if e.numel():
            away = (g.double() - e.double()).abs().max() / e.double().abs().max().clamp(min=1e-12)
            errors.append(float(torch.nan_to_num(away, nan=torch.inf)))
    return max(errors)


def last_line(raised: Exception) -> str:
    text = str(raised).strip() or traceback.format_exc().strip()
    return text.splitlines()[-1][:300]
