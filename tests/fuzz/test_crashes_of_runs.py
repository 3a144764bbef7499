"""A crash, a full disk or a failing one at any call of a whole run, an evaluation or a store that is being written:
the same command afterwards ends where the one that nothing happened to ended, to the bit.

By default at a few dozen calls spread over each; with EBLVM_FUZZ at every one.
"""

import errno
import os
from collections.abc import Callable, Iterator
from functools import cache, partial
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.utils._pytree import tree_flatten

from eblvm.engine import evaluation, recipes
from eblvm.engine.data.dataset import Dataset
from eblvm.engine.data.pictures.prepare import prepare
from eblvm.engine.data.pictures.store import open_store
from eblvm.engine.data.readers import read
from eblvm.engine.errors import UserError
from eblvm.engine.evaluation.section import Section
from eblvm.engine.runs import checkpoint
from eblvm.engine.runs.saved import SavedRun
from eblvm.engine.runs.stats import read_eval, read_rows
from eblvm.engine.training.loop import train

from .fault_layer import Crash, Faults, failing
from .properties import TALLY

EVERY = "EBLVM_FUZZ" in os.environ
SPREAD = 4  # points of an operation in the bounded set
CODES = (None, errno.ENOSPC, errno.EIO)  # None: the process is gone


def points(operation: Callable[[Path], object], folder: Path, code: int | None) -> Iterator[tuple[int, Path]]:
    """Places with what `operation` leaves when call number i of it fails; all calls, or some spread over them."""
    faults = Faults()
    with failing(faults):
        operation(folder / "counted")
    calls = range(faults.count)
    for at in calls if EVERY else calls[:: max(1, len(calls) // SPREAD)]:
        place = folder / f"{code}-{at}"
        try:
            with failing(Faults(at, code)):
                operation(place)
        except (Crash, UserError, OSError):
            TALLY["crash points"] += 1
        yield at, place


RUNS = {
    "checkerboard": recipes.recipe("checkerboard", method="bidsm").replaced(N=1, K=1, steps=6),
    "deep": recipes.recipe("digits", model="deep").replaced(
        N=1, K=1, steps=6, width=2, latent=3, head_width=5, posterior_width=2, ema=0.9
    ),
    "bidvl": recipes.recipe("digits", method="bidvl").replaced(
        steps=4, width=2, posterior_width=2, generator_width=2, latent=4
    ),
}


@cache
def data_of(kind: str) -> Dataset:
    """A few samples of a run's data, loaded once."""
    data = RUNS[kind].load_data()
    return data._replace(train=data.train[:200], valid=data.valid[:20], test=data.test[:20])


def trained(out: Path, kind: str = "checkerboard") -> None:
    """A few steps with two or three checkpoints."""
    config = RUNS[kind].replaced(batch=4, checkpoint_every=2, log_every=1, validations=2, keep=2)
    train(config, out, say=lambda _: None, dataset=data_of(kind))


def logged(folder: Path) -> list[tuple]:
    """The rows of a run, without what the clock says."""
    return [(row["step"], row.get("loss"), row.get("validation")) for row in read_rows(folder / "stats.jsonl")]


@pytest.mark.parametrize("kind", RUNS)
@pytest.mark.parametrize("code", CODES)
def test_a_run_goes_on_bitwise(code: int | None, kind: str, tmp_path: Path) -> None:
    run = partial(trained, kind=kind)
    run(tmp_path / "whole")
    whole = checkpoint.newest(tmp_path / "whole" / "checkpoints")[0]
    for at, place in points(run, tmp_path, code):
        run(place)
        found, passed_over = checkpoint.newest(place / "checkpoints")
        assert passed_over == []
        for x, y in zip(tree_flatten(whole)[0], tree_flatten(found)[0], strict=True):
            assert torch.equal(x, y) if isinstance(x, torch.Tensor) else x == y, at
        assert logged(place) == logged(tmp_path / "whole"), at
        assert (place / "config.json").read_bytes() == (tmp_path / "whole" / "config.json").read_bytes(), at


@pytest.mark.parametrize("code", CODES)
def test_an_evaluation_goes_on(code: int | None, tmp_path: Path, monkeypatch) -> None:
    trained(tmp_path / "run")
    run = SavedRun(tmp_path / "run", *_opened(tmp_path / "run"))
    sections = [Section(f"part-{i}", {"i": i}, lambda i=i: [{f"figure_{i}": i / 7}]) for i in range(4)]
    monkeypatch.setattr(evaluation, "sections_of", lambda *_: sections)

    def evaluated(place: Path) -> dict:
        place.mkdir(exist_ok=True)
        here = SavedRun(place, run.config, run.payload, custom_data=data_of("checkerboard"))
        return evaluation.evaluate(here, "last", evaluation.EvalOptions())["mean"]

    whole = evaluated(tmp_path / "whole")
    for at, place in points(evaluated, tmp_path, code):
        left = read_eval(place / "eval.json")
        assert left is None or left["mean"].items() <= whole.items(), at
        assert evaluated(place) == whole, at
        assert read_eval(place / "eval.json")["mean"] == whole, at


def _opened(folder: Path) -> tuple:
    opened = SavedRun.open(folder, dataset=data_of("checkerboard"))
    return opened.config, opened.payload


@pytest.mark.parametrize("code", CODES)
def test_a_store_goes_on(code: int | None, tmp_path: Path) -> None:
    source = tmp_path / "set.npz"
    images = np.random.default_rng(0).integers(0, 256, (30, 8, 8, 3), dtype=np.uint8)
    np.savez(source, x_train=images[:20], x_test=images[20:], y_train=np.arange(20), y_test=np.arange(10))

    def prepared(place: Path) -> None:
        prepare(source, read(source), place)

    prepared(tmp_path / "whole")
    whole = open_store(tmp_path / "whole")
    for at, place in points(prepared, tmp_path, code):
        prepared(place) if not (place / "manifest.json").exists() else None
        found = open_store(place)
        assert found.manifest == whole.manifest, at
        assert np.array_equal(found.images, whole.images), at
