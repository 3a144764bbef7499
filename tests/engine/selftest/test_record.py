"""The record of `doctor --gpu`, its verdict, and its state while a check runs."""

import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from eblvm.engine.cli import doctor
from eblvm.engine.selftest import record
from eblvm.engine.selftest.finding import Finding, Measured, SelfCheck, run, verdict
from eblvm.engine.selftest.isolation import listed

NAME = "a GPU of the test"


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    properties = SimpleNamespace(name=NAME, major=9, minor=0, total_memory=2**30, multi_processor_count=132)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda *_: NAME)
    monkeypatch.setattr(record, "own_device", lambda device: "cuda:0")


def with_checks(monkeypatch: pytest.MonkeyPatch, *checks: SelfCheck) -> None:
    def group(device: str) -> Iterator[SelfCheck]:
        assert device == "cuda:0"
        yield from checks

    monkeypatch.setattr(record, "GROUPS", (group,))
    # In this process: those that a test makes cannot be sent to another one.
    monkeypatch.setattr(record, "isolated", lambda groups, device, begin: run(listed(groups, device), begin))


def raising() -> Measured:
    raise RuntimeError("CUDA error: an illegal memory access was encountered")


GOOD = SelfCheck("good", partial(Measured, 0.5, 1.0))
BAD = SelfCheck("bad", partial(Measured, 2.0, 1.0))
NAN = SelfCheck("not a number", partial(Measured, float("nan"), 1.0))
RAISES = SelfCheck("raises", raising)
TIME = SelfCheck("time", partial(Measured, 3.0, None, "ms"))


def test_all_passed(gpu: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: Any) -> None:
    with_checks(monkeypatch, GOOD, TIME)
    path = tmp_path / "gpu.json"
    doctor.main(["--gpu", "--json", str(path)])
    kept = json.loads(path.read_text())
    assert kept["findings"] == [
        {"check": "good", "figure": 0.5, "bound": 1.0, "unit": "relative", "problem": "", "passed": True},
        {"check": "time", "figure": 3.0, "bound": None, "unit": "ms", "problem": "", "passed": True},
    ]
    assert kept["gpu"] == NAME
    assert kept["running"] is None
    for name in ("driver", "cuda", "cudnn", "versions", "capability", "platform", "torch", "kernels", "optional"):
        assert name in kept
    said = capsys.readouterr().out.splitlines()
    assert said[-1] == kept["verdict"]
    assert said[-1].startswith(f"all 2 checks passed on {NAME}. Next: send the record")


def test_failures_are_named_and_the_exit_code_is_1(
    gpu: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: Any
) -> None:
    """A check that raises has failed, one that is not a number too, and those after them run."""
    with_checks(monkeypatch, RAISES, BAD, NAN, GOOD)
    path = tmp_path / "gpu.json"
    with pytest.raises(SystemExit) as ended:
        doctor.main(["--gpu", "--json", str(path)])
    assert ended.value.code == 1
    findings = json.loads(path.read_text())["findings"]
    assert [f["passed"] for f in findings] == [False, False, False, True]
    assert "illegal memory access" in findings[0]["problem"]
    said = capsys.readouterr().out
    assert "illegal memory access" in said
    assert said.splitlines()[-1].startswith(
        f"3 of 4 checks failed on {NAME}: raises; bad; not a number. Next: trust no"
    )


def test_what_is_sent_does_not_name_the_home_folder(
    gpu: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: Any
) -> None:
    def raising() -> Measured:
        raise FileNotFoundError(Path.home() / "cache" / "kernel.ptx")

    with_checks(monkeypatch, SelfCheck("raises", raising))
    monkeypatch.setenv("HOME", str(tmp_path / "someone"))
    path = tmp_path / "gpu.json"
    with pytest.raises(SystemExit):
        doctor.main(["--gpu", "--json", str(path)])
    assert "someone" not in path.read_text()
    assert "~/cache/kernel.ptx" in path.read_text()


def test_a_long_list_of_failures_is_cut() -> None:
    found = [Finding(f"check {i}", 1.0, 0.0, "") for i in range(20)]
    said = verdict(found, "here", "go on", "stop")
    assert said.startswith("20 of 20 checks failed on here: check 0; ")
    assert said.endswith("check 7 and 12 more. Next: stop")


def test_the_record_says_which_check_was_running_when_the_process_ended(gpu: None, monkeypatch: Any) -> None:
    with_checks(monkeypatch, GOOD, BAD)
    kept: list[dict[str, Any]] = []
    record.report(lambda facts: kept.append(json.loads(json.dumps(facts))))
    assert [facts["running"] for facts in kept] == ["good", "bad", None]
    assert [len(facts["findings"]) for facts in kept] == [0, 1, 2]
    assert kept[-1]["verdict"]


def test_the_drivers_version_is_what_its_tool_says(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert record.driver() is None
    tool = tmp_path / "nvidia-smi"
    tool.write_text('#!/bin/sh\n[ "$1" = --query-gpu=driver_version ] && echo 580.65.06 && echo 580.65.06\n')
    tool.chmod(0o755)
    assert record.driver() == "580.65.06"
    tool.write_text("#!/bin/sh\nexit 9\n")
    assert record.driver() is None
