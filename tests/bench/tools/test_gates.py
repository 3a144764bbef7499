"""The deterministic gates of this version, and that they can fail."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from eblvm.bench.tools import gates, record, registry
from eblvm.bench.tools.registry import Case
from eblvm.engine.errors import UserError
from eblvm.engine.training import step as training
from eblvm.kernels import backends


def test_gates_of_this_version(run: Callable[..., None]) -> None:
    """Fails if a step saves, allocates, computes or calls more than recorded; 'eblvm bench gates --update' if meant."""
    if not any(b.op == "philox" and b.name == "native" and b.serves for b in backends()):
        pytest.skip("the figures are recorded with native kernels, which are not built here")
    run("bench", "gates")


@pytest.fixture
def one_case(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> str:
    """A gate of one small case in a file of its own."""
    case = Case(registry.recipe("digits").replaced(batch=10, latent=6, fused=False), (8,), ("D", "H"))
    monkeypatch.setattr(registry, "gates", lambda: [case])
    path = tmp_path / "gates.json"
    assert gates.run(update=True, path=path) == []
    return str(path)


def test_an_extra_saved_tensor_fails(
    run: Callable[..., None], one_case: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run("bench", "gates", "--json", one_case)
    assert "gates passed" in capsys.readouterr().out
    moved = training.moved

    def saving(*arguments: Any, **how: Any) -> Callable[..., object]:
        step = moved(*arguments, **how)

        def call(*given: Any) -> object:
            with torch.enable_grad():
                held = torch.zeros(1000, requires_grad=True).exp()
            result = step(*given)
            del held
            return result

        return call

    monkeypatch.setattr(training, "moved", saving)
    with pytest.raises(SystemExit) as stop:
        run("bench", "gates", "--json", one_case)
    assert stop.value.code == 1
    err = capsys.readouterr().err
    assert "saved_bytes" in err
    assert "peak_bytes" in err
    assert "flops" not in err


def test_growth_is_named_and_shrinking_is_not() -> None:
    before = {"saved_bytes": 1000, "peak_bytes": 1000, "flops": 1000, "ops": 100}
    assert gates.grown("c", {**before, "saved_bytes": 1020, "ops": 50}, before) == []
    (change,) = gates.grown("c", {**before, "flops": 1021}, before)
    assert str(change) == "c: flops 1000 -> 1021 (+2.1 %)"
    assert gates.grown("c", {**before, "saved_bytes": None}, before) == []
    (change,) = gates.grown("c", {**before, "saved_bytes": 8}, {**before, "saved_bytes": 0})
    assert "from nothing" in str(change)


def test_cases_that_come_and_go_are_told(one_case: str) -> None:
    path = Path(one_case)
    kept = json.loads(path.read_text())
    (name,) = kept["cases"]
    path.write_text(json.dumps({**kept, "cases": {"method=gone": kept["cases"][name]}}))
    problems = gates.run(update=False, path=path)
    assert [problem.split(";")[0] for problem in problems] == [
        "method=gone: not measured any more",
        f"{name}: not in the record",
    ]


@pytest.mark.parametrize("what", ["torch", "kernels"])
def test_a_record_of_another_world_is_refused(one_case: str, what: str) -> None:
    path = Path(one_case)
    path.write_text(json.dumps({**json.loads(path.read_text()), what: "other"}))
    with pytest.raises(UserError, match=f"recorded with {what} other"):
        gates.run(update=False, path=path)


def test_a_new_kernel_alone_does_not_fail(one_case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    now = record.versions()
    monkeypatch.setattr(record, "versions", lambda: {**now, "kernels": now["kernels"] + ", new=native"})
    assert gates.run(update=False, path=Path(one_case)) == []
