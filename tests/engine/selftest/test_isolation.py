"""Checks in a process of their own: one that raises, hangs or crashes has failed, and those after it run."""

import os
from pathlib import Path

import pytest
import torch

from eblvm.engine.selftest import isolation
from eblvm.engine.selftest.isolation import isolated
from tests.engine.selftest import faulty_groups as groups


def test_whatever_a_check_does_the_others_run() -> None:
    begun: list[str] = []
    found = list(isolated((groups.some, groups.broken, groups.last), "cpu", begun.append, limit_s=15))
    problems = {f.check: f.problem for f in found}
    assert begun == list(problems)
    assert begun == ["first", "raises", "hangs", "crashes", "after them", "before", "broken", "last"]
    assert [f.check for f in found if f.passed] == ["first", "after them", "before", "last"]
    assert "no kernel image" in problems["raises"]
    assert problems["hangs"] == "it took more than 15 s; its process was ended"
    assert problems["crashes"] == "its process ended with code -6"
    assert "no second check" in problems["broken"]
    pid = found[-1].figure
    assert pid is not None
    assert pid != os.getpid()
    assert not Path(f"/proc/{int(pid)}").exists()


def test_a_process_that_cannot_start_is_one_failure() -> None:
    (found,) = isolated((groups.unusable, groups.last), "cpu", lambda name: None)
    assert found.check == "the start of a process for the checks"
    assert found.problem == "its process ended with code 7"


def test_a_lost_context_ends_the_process_and_not_the_checks(monkeypatch: pytest.MonkeyPatch) -> None:
    """After a check that raised, the GPU no longer answers: nothing more is tried there."""

    class Kept:
        said: list[object] = []  # noqa: RUF012
        send = said.append

    def lost(device: str) -> None:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    monkeypatch.setattr(torch.cuda, "synchronize", lost)
    monkeypatch.setattr(isolation, "own_device", lambda device: device)
    isolation.work(Kept, (groups.some,), "cuda:0", 0)  # type: ignore[arg-type]
    names = [said if isinstance(said, str) else said.check for said in Kept.said]  # type: ignore[attr-defined]
    assert names == ["first", "first", "raises", "raises"]
