"""`eblvm demo` with few steps: three models, one of them in a second process, a table and a picture."""

from pathlib import Path

import pytest

from eblvm.engine import recipes
from eblvm.engine.cli import main
from eblvm.engine.config import Config
from eblvm.engine.runs import checkpoint

recipe = recipes.recipe


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    def shortened(*arguments: str, **more: str) -> Config:
        return recipe(*arguments, **more).replaced(steps=20)

    monkeypatch.setattr(recipes, "recipe", shortened)
    monkeypatch.setattr("eblvm.engine.cli.demo.GRBM_STEPS", 20)


def test_the_demo(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", "--out", str(tmp_path)]) == 0
    said = capsys.readouterr().out
    for title, folder in (("DSM, GRBM", "grbm-dsm"), ("BiDSM, GRBM", "grbm-bidsm"), ("BiDSM, deep", "mlp-bidsm")):
        assert title in said
        assert checkpoint.steps(tmp_path / folder / "checkpoints") == [20]
    assert (tmp_path / "density.png").stat().st_size > 10_000


def test_a_failed_run_of_the_second_process_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "mlp-bidsm").write_text("a file in its place")
    assert main(["demo", "--out", str(tmp_path)]) == 2
    assert "mlp-bidsm was not trained: " in capsys.readouterr().err
