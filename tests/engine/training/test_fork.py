"""Runs that go on: for longer, and from another run's weights; what a fork records."""

import json
from pathlib import Path

import pytest
import torch

from eblvm.engine import recipes
from eblvm.engine.cli import main
from eblvm.engine.config import Config
from eblvm.engine.errors import UserError
from eblvm.engine.runs import checkpoint, parent
from eblvm.engine.runs.parent import Parent
from eblvm.engine.training.loop import train
from tests.engine.training.test_loop import assert_bitwise_equal, final_state, small


def weights(folder: Path, step: int | None = None) -> dict[str, torch.Tensor]:
    if step is None:
        return final_state(folder)["state"]["theta"]
    return checkpoint.read(checkpoint.path_of(folder / "checkpoints", step))["state"]["theta"]


def test_a_cosine_run_with_a_horizon_extends_to_the_bits_of_one_long_run(tmp_path: Path) -> None:
    """20 of 60 steps on a horizon of 60, then resumed to 60, is the run of 60 steps."""
    options = "--method bidsm --N 1 --K 1 --schedule cosine --validations 0 --checkpoint-every 10 --keep 9".split()
    whole, part = tmp_path / "whole", tmp_path / "part"
    assert main(["train", "checkerboard", *options, "--steps", "60", "--out", str(whole)]) == 0
    assert main(["train", "checkerboard", *options, "--steps", "20", "--horizon", "60", "--out", str(part)]) == 0
    assert main(["train", "--resume", str(part), "--steps", "60"]) == 0
    assert_bitwise_equal(final_state(whole), final_state(part))


def test_a_finished_cosine_run_is_stretched_and_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "run"
    config = small(schedule="cosine", steps=20, validations=0)
    train(config, out)
    longer = config.replaced(steps=40)
    with pytest.raises(UserError, match=r"steps 20 -> 40.*--resume .* --steps 40"):
        train(longer, out)
    assert main(["train", "--resume", str(out), "--steps", "40"]) == 0
    assert "no longer at 20" in capsys.readouterr().out
    payload = final_state(out)
    assert payload["step"] == 40
    assert not torch.equal(payload["state"]["theta"]["b"], weights(out, 20)["b"])
    assert main(["train", "--resume", str(out)]) == 0  # as it stands now
    assert longer.optimisation.schedule.factor(60, 40) == 0.0


def test_resume_refuses_what_would_make_another_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "run"
    train(small(steps=10), out)
    assert main(["train", "--resume", str(out), "--lr", "0.1"]) == 2
    assert f"--init {out}" in capsys.readouterr().err
    assert main(["train", "--resume", str(out), "--out", str(tmp_path / "other")]) == 2
    assert main(["train", "--resume", str(tmp_path / "nowhere")]) == 2


def test_a_fork_starts_at_its_parents_weights_and_records_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """BiSM goes on from VaGES: theta and q to the bit, moments anew; of a step; later without its parent."""
    before, after = tmp_path / "vages", tmp_path / "bism"
    train(small(method="vages-dsm", steps=20, checkpoint_every=10), before)
    arguments = ["train", "--init", f"{before}@10", "--method", "bidsm", "--N", "1", "--steps", "8", "--keep", "3"]
    assert main([*arguments, "--lr", "1e-4", "--out", str(after)]) == 0
    start = checkpoint.read(checkpoint.path_of(after / "checkpoints", 0))
    theirs = checkpoint.read(checkpoint.path_of(before / "checkpoints", 10))["state"]
    for part in ("theta", "phi"):
        assert start["state"][part].keys() == theirs[part].keys()
        assert all(torch.equal(p, theirs[part][k]) for k, p in start["state"][part].items())
    assert int(start["state"]["theta_opt"]["step_count"]) == 0
    record = parent.read(after)
    assert record is not None
    assert (record["run"], record["step"], record["method"]) == (str(before), 10, "vages-dsm")
    assert any(change.startswith("lr ") for change in record["changes"])
    config = Config.from_json(json.loads((after / "config.json").read_text()))
    assert config["sigma"] == small()["sigma"]  # of the parent, not the method's default
    end = final_state(after)
    for file in (before / "checkpoints").iterdir():
        file.unlink()
    for step in (s for s in checkpoint.steps(after / "checkpoints") if s):
        checkpoint.path_of(after / "checkpoints", step).unlink()
    assert main([*arguments, "--lr", "1e-4", "--out", str(after)]) == 0
    assert_bitwise_equal(final_state(after), end)
    assert main(["train", "--init", str(tmp_path), "--out", str(after)]) == 2
    assert "began from" not in capsys.readouterr().out


def test_another_energy_is_refused_and_another_q_starts_anew(tmp_path: Path) -> None:
    before = tmp_path / "dsm"
    train(small(steps=5, validations=0), before)
    wider = recipes.points("checkerboard4").replaced(latent=7, steps=5)
    with pytest.raises(UserError, match=r"another energy.*its .* is \[.*expected"):
        train(wider, tmp_path / "wider", init=Parent(before))
    assert not (tmp_path / "wider").exists()
    said: list[str] = []
    train(small(method="bidsm", steps=5), tmp_path / "bidsm", said.append, init=Parent(before))
    assert any(s.startswith("q(h|v) starts anew") for s in said)
    with pytest.raises(UserError, match="began without --init"):
        train(small(steps=5, validations=0), before, init=Parent(tmp_path / "bidsm"))


def test_a_fork_of_replicas(tmp_path: Path) -> None:
    """One each where the counts agree; the first for all otherwise; one for all from a single run."""
    many, one = tmp_path / "many", tmp_path / "one"
    train(small(steps=4, validations=0, replicas=2), many)
    train(small(steps=4, validations=0), one)
    for name, config, source, pick in (
        ("same", small(steps=1, keep=3, replicas=2), many, lambda p: p),
        ("other", small(steps=1, keep=3, lr=(0.1, 0.2, 0.3)), many, lambda p: p[0].expand(3, *p.shape[1:])),
        ("first", small(steps=1, keep=3), many, lambda p: p[0]),
        ("all", small(steps=1, keep=3, replicas=3), one, lambda p: p.expand(3, *p.shape)),
    ):
        train(config, tmp_path / name, init=Parent(source))
        assert all(torch.equal(p, pick(weights(source)[k])) for k, p in weights(tmp_path / name, 0).items())
