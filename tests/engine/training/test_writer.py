"""Checkpoints beside the steps: written by a thread, of a copy, one at a time, and no error of theirs is lost."""

import errno
import hashlib
import os
import threading
import time
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import pytest
import torch

from eblvm.engine import recipes
from eblvm.engine.config import Config
from eblvm.engine.errors import DivergedError, UserError
from eblvm.engine.methods.base import State, empty_weights
from eblvm.engine.optim.optimisation import Optimisation
from eblvm.engine.optim.sgd import Sgd
from eblvm.engine.runs import checkpoint
from eblvm.engine.training import guard
from eblvm.engine.training.loop import train
from eblvm.engine.training.start import Progress
from eblvm.engine.training.writer import Writer

PATIENCE_S = 60


def small(**changes: object) -> Config:
    settings = {"batch": 4, "steps": 6, "checkpoint_every": 2, "log_every": 1, "validations": 0, "keep": 9}
    return recipes.recipe("checkerboard", method="dsm").replaced(**settings | changes)


def progress(step: int, w: torch.Tensor) -> Progress:
    return Progress(step, State(Sgd().init({"w": w}), empty_weights()), {})


@pytest.fixture
def writer(tmp_path: Path):
    found = Writer(small(), tmp_path, [""], progress(0, torch.ones(3)), None, None)
    yield found
    found.close()


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Nothing is written until this event is set."""
    go, save = threading.Event(), checkpoint.save

    def waiting(*arguments: object) -> None:
        assert go.wait(PATIENCE_S)
        save(*arguments)

    monkeypatch.setattr(checkpoint, "save", waiting)
    return go


def full(*_: object) -> None:
    raise UserError("step-00000002.pt cannot be written (No space left on device)")


def test_what_moves_after_a_save_is_not_in_the_checkpoint(
    writer: Writer, held: threading.Event, tmp_path: Path
) -> None:
    w = torch.ones(3)
    writer.save(progress(1, w), {})
    w.fill_(2.0)
    assert checkpoint.steps(tmp_path / "checkpoints") == []  # the step did not wait for it
    held.set()
    writer.wait()
    found, _ = checkpoint.newest(tmp_path / "checkpoints")
    assert found is not None
    assert found["state"]["theta"]["w"].tolist() == [1, 1, 1]
    assert writer.kept() == 1


def test_the_next_save_waits_for_the_one_before(writer: Writer, held: threading.Event, tmp_path: Path) -> None:
    writer.save(progress(1, torch.ones(3)), {})
    threading.Timer(0.1, held.set).start()
    writer.save(progress(2, torch.ones(3)), {})
    assert 1 in checkpoint.steps(tmp_path / "checkpoints")
    writer.wait()
    assert checkpoint.steps(tmp_path / "checkpoints") == [2, 1]


def test_kept_is_on_disk(writer: Writer, held: threading.Event, tmp_path: Path) -> None:
    writer.save(progress(1, torch.ones(3)), {})
    threading.Timer(0.1, held.set).start()
    with pytest.raises(DivergedError, match="the checkpoint of step 1 is kept"):
        guard.check(2, {"theta": [float("nan")]}, writer.kept)
    assert checkpoint.steps(tmp_path / "checkpoints") == [1]


def test_kept_does_not_name_one_that_could_not_be_written(writer: Writer, monkeypatch, capsys) -> None:
    writer.save(progress(1, torch.ones(3)), {})
    writer.wait()
    monkeypatch.setattr(checkpoint, "save", full)
    writer.save(progress(2, torch.ones(3)), {})
    with pytest.raises(DivergedError, match="the checkpoint of step 1 is kept"):
        guard.check(3, {"theta": [float("nan")]}, writer.kept)
    writer.close()
    assert "warning: step-00000002.pt cannot be written" in capsys.readouterr().err


def test_an_error_ends_the_run_at_a_later_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With no other checkpoint and no row due, soon; the last step would be thousands later."""
    monkeypatch.setattr(checkpoint, "save", full)
    config = small(steps=10**6, checkpoint_every=10**6 - 1, log_every=10**6, checkpoint_minutes=1e-4)
    began = time.monotonic()
    with pytest.raises(UserError, match="No space left on device"):
        train(config, tmp_path / "run")
    assert time.monotonic() - began < PATIENCE_S


def test_an_error_of_the_last_checkpoint_is_the_run_s(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoint, "save", full)
    with pytest.raises(UserError, match="No space left on device"):
        train(small(checkpoint_every=100), tmp_path / "run")


def test_a_folder_that_is_gone_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run, step = tmp_path / "run", Optimisation.rates

    def removing(optimisation, number: int, *rest: object) -> object:
        if number == 5:
            (run / "config.json").unlink()
        return step(optimisation, number, *rest)

    monkeypatch.setattr(Optimisation, "rates", removing)
    with pytest.raises(UserError, match="was removed"):
        train(small(log_every=100, checkpoint_every=100), run)


def test_the_thread_of_the_steps_neither_hashes_nor_syncs_a_checkpoint(tmp_path: Path, monkeypatch) -> None:
    by: dict[str, set[str]] = {"fsync": set(), "sha256": set()}
    fsync, sha256, rates = os.fsync, hashlib.sha256, Optimisation.rates

    def traced_fsync(handle: int) -> None:
        by["fsync"].add(threading.current_thread().name)
        fsync(handle)

    def traced_sha256(*content: bytes) -> object:
        by["sha256"].add(threading.current_thread().name)
        return sha256(*content)

    def tracing(*arguments: object) -> object:  # from the first step on: the configuration is written before it
        monkeypatch.setattr(os, "fsync", traced_fsync)
        monkeypatch.setattr(hashlib, "sha256", traced_sha256)
        return rates(*arguments)

    monkeypatch.setattr(Optimisation, "rates", tracing)
    assert train(small(), tmp_path / "run")
    assert by == {"fsync": {"checkpoint"}, "sha256": {"checkpoint"}}
    assert checkpoint.steps(tmp_path / "run" / "checkpoints") == [6, 4, 2]


def test_a_disk_that_takes_its_time_delays_no_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One checkpoint takes two seconds or more to write: the step that saves and those after it do not wait for it."""
    fsync, rates = os.fsync, Optimisation.rates
    begun: list[float] = []

    def slow(handle: int) -> None:
        if threading.current_thread().name == "checkpoint":
            time.sleep(0.5)
        fsync(handle)

    def stamped(*arguments: object) -> object:
        begun.append(time.monotonic())
        return rates(*arguments)

    monkeypatch.setattr(os, "fsync", slow)
    monkeypatch.setattr(Optimisation, "rates", stamped)
    assert train(small(steps=9, checkpoint_every=5), tmp_path / "run")
    ended = time.monotonic()
    assert begun[-1] - begun[0] < 1.0 < 2.0 < ended - begun[0]  # the run itself is complete when it says so
    assert checkpoint.steps(tmp_path / "run" / "checkpoints") == [9, 5]


def test_a_save_costs_the_steps_less_than_5_percent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the processor's time of the steps' thread, which neither other programs nor the disk change."""
    save, rates = Writer.save, Optimisation.rates
    saves: list[float] = []
    begun: list[float] = []

    def timed(writer: Writer, *arguments: Any) -> None:
        before = time.thread_time()
        save(writer, *arguments)
        saves.append(time.thread_time() - before)

    def stamped(*arguments: object) -> object:
        begun.append(time.thread_time())
        return rates(*arguments)

    monkeypatch.setattr(Writer, "save", timed)
    monkeypatch.setattr(Optimisation, "rates", stamped)
    deep = recipes.recipe("digits", "deep").replaced(
        batch=64, width=16, ema=0.9, steps=6, checkpoint_every=1, log_every=100, validations=0, threads=1
    )
    assert train(deep, tmp_path / "run")
    steps = [after - before for before, after in pairwise(begun)]
    assert median(saves) < 0.05 * median(steps)


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO])
def test_a_failing_disk_is_named_with_what_is_kept(code: int, tmp_path: Path, monkeypatch) -> None:
    replace = os.replace

    def failing(source: str, target: str) -> None:
        if "step-00000004.pt" in str(target):
            raise OSError(code, os.strerror(code))
        replace(source, target)

    monkeypatch.setattr(os, "replace", failing)
    with pytest.raises(UserError, match=rf"{os.strerror(code)}.*the checkpoint of step 2 is kept"):
        train(small(), tmp_path / "run")
    monkeypatch.undo()
    assert train(small(), tmp_path / "run")
