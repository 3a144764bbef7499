"""A trace of a step has its parts by name, on the CPU too."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from eblvm.engine.errors import UserError


def test_trace(run: Callable[..., None], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "step.json"
    run("profile", "checkerboard", "--no-fused", "--N", "1", "--K", "1", "--trace", str(path))
    assert f"wrote {path}" in capsys.readouterr().out
    names = {event.get("name") for event in json.loads(path.read_text())["traceEvents"]}
    assert {"eblvm: gradient", "eblvm: features", "eblvm: lower steps", "eblvm: unrolled steps"} <= names
    assert "eblvm: move theta" in names


def test_a_trace_is_of_one_setting(run: Callable[..., None], tmp_path: Path) -> None:
    with pytest.raises((UserError, SystemExit)):
        run("profile", "checkerboard", "--N", "0,1", "--trace", str(tmp_path / "x.json"))
