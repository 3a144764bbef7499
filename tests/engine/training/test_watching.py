"""A run while it trains: previews that change no bit, what is measured, loggers, saving and validating by the clock."""

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from eblvm.engine.cli import main
from eblvm.engine.errors import UserError
from eblvm.engine.previews import preview
from eblvm.engine.runs import checkpoint
from eblvm.engine.runs.stats import MEASURED, read_rows, reproducible
from eblvm.engine.training.loop import train
from tests.engine.training.test_loop import assert_bitwise_equal, final_state, small


def test_previews_change_no_bit_and_are_shown(tmp_path: Path) -> None:
    config = small(method="bidsm", steps=20, N=1, K=1)
    train(config, tmp_path / "plain")
    train(config.replaced(preview_every=10), tmp_path / "shown", preview=preview)
    assert_bitwise_equal(final_state(tmp_path / "plain"), final_state(tmp_path / "shown"))
    assert reproducible(tmp_path / "plain" / "stats.jsonl") == reproducible(tmp_path / "shown" / "stats.jsonl")
    names = sorted(p.name for p in (tmp_path / "shown" / "previews").iterdir())
    assert names == [f"{what}-000000{step}.png" for what in ("samples", "weights") for step in (10, 20)]
    board = EventAccumulator(str(tmp_path / "shown" / "tensorboard")).Reload()
    assert set(board.Tags()["images"]) == {"samples", "weights"}


def test_images_are_reconstructed(tmp_path: Path) -> None:
    arguments = "train digits --method dsm --steps 4 --validations 1 --preview-every 4".split()
    assert main([*arguments, "--out", str(tmp_path / "run")]) == 0
    assert (tmp_path / "run" / "previews" / "reconstruction-00000004.png").is_file()


def test_what_is_measured_goes_on_after_a_resume(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = "--method dsm --schedule cosine --horizon 20 --log-every 5 --validations 2".split()
    assert main(["train", "checkerboard", *options, "--steps", "10", "--out", str(tmp_path / "run")]) == 0
    assert main(["train", "--resume", str(tmp_path / "run"), "--steps", "20"]) == 0
    rows = read_rows(tmp_path / "run" / "stats.jsonl")
    assert [row["step"] for row in rows] == [5, 10, 15, 20]
    seconds = [row["seconds"] for row in rows]
    assert seconds == sorted(seconds)
    assert all(row[name] > 0 for row in rows for name in MEASURED)
    assert rows[0]["lr"] > rows[1]["lr"] > rows[3]["lr"] > 0
    said = capsys.readouterr().out
    assert "best validation" in said
    assert "next: eblvm eval" in said


def test_saving_and_validating_by_the_clock(tmp_path: Path) -> None:
    """A hundred-millionth of a minute has passed at every step; at 0 minutes nothing is due."""
    train(small(steps=4, keep=9, validations=1, checkpoint_minutes=1e-8, validate_minutes=1e-8), tmp_path / "often")
    assert checkpoint.steps(tmp_path / "often" / "checkpoints")[:3] == [4, 3, 2]
    assert sum("validation" in row for row in read_rows(tmp_path / "often" / "stats.jsonl")) >= 3
    train(small(steps=4, keep=9, validations=1, checkpoint_minutes=0.0), tmp_path / "rarely")
    assert checkpoint.steps(tmp_path / "rarely" / "checkpoints") == [4]


class Recorder(SimpleNamespace):
    """Stands for wandb's or mlflow's module: keeps what it was told."""

    def __init__(self) -> None:
        super().__init__(told=[], info=SimpleNamespace(run_id="42"))

    def __getattr__(self, name: str) -> Any:
        def call(*args: Any, **kwargs: Any) -> "Recorder":
            self.told.append((name, args, kwargs))
            return self

        return call


@pytest.mark.parametrize("name", ["wandb", "mlflow"])
def test_other_loggers_hear_of_every_line_and_picture(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorder = Recorder()
    monkeypatch.setitem(sys.modules, name, recorder)
    config = small(steps=10, log_every=5, logger=("tensorboard", name), preview_every=10, lr=(1e-3, 1e-2))
    train(config, tmp_path / "run", preview=preview)
    calls = [called for called, _, _ in recorder.told]
    scalars = "log" if name == "wandb" else "log_metrics"
    heard = [args[0] for called, args, _ in recorder.told if called == scalars]
    keys = {key.replace("lr ", "lr=").replace("seed ", "seed=") for line in heard for key in line}
    assert {"loss/lr=0.001", "loss/lr=0.01", "seconds"} <= keys
    assert {"loss/seed=0 lr=0.001", "loss/seed=0 lr=0.01", "validation/seed=0 lr=0.01"} <= keys
    assert calls[-1] == ("finish" if name == "wandb" else "end_run")
    assert ("Image" if name == "wandb" else "log_artifact") in calls


def test_a_logger_that_is_not_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(UserError, match=r"pip install 'eblvm\[wandb\]'"):
        train(small(steps=2, logger=("wandb",)), tmp_path / "run")
