"""A researcher's day, by the commands of the README: every step works after the one before and names the next."""

import contextlib
import io
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import eblvm
from eblvm.engine.cli import main
from eblvm.engine.evaluation.metrics import inception
from eblvm.engine.runs import checkpoint
from tests.engine.training.test_loop import assert_bitwise_equal, final_state

COMMAND = [sys.executable, "-c", "import sys; from eblvm.engine.cli import main; sys.exit(main())"]
BOARD = "train checkerboard --method bidsm --N 1 --K 1 --validations 4 --checkpoint-every 200 --log-every 100".split()


def run(*arguments: str | Path) -> str:
    """Run a command and return its output; it must succeed, and end with the next step. What may follow a distance of
    two folders nobody knows."""
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        assert main([str(a) for a in arguments]) == 0
    last = said.getvalue().partition("\nnext: ")[2]
    assert arguments[0] == "fid" or last.startswith(("eblvm ", "python ")), (
        f"{arguments[0]} says no next step: {said.getvalue()}"
    )
    assert last.count("\n") <= 2, f"{arguments[0]} says more after its next step: {last}"
    return said.getvalue()


def test_a_day(tmp_path: Path) -> None:
    runs, board = tmp_path / "runs", tmp_path / "runs" / "board"
    length = ["--steps", "1500", "--out", board]

    # Train, look at previews, interrupt, continue: the result equals that of an uninterrupted run.
    process = subprocess.Popen([*COMMAND, *BOARD, *map(str, length), "--preview-every", "200"], stdout=subprocess.PIPE)
    while process.poll() is None and max(checkpoint.steps(board / "checkpoints"), default=0) < 400:
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    said = process.communicate(timeout=120)[0].decode()
    assert process.returncode == 0
    assert "the same command continues it" in said
    assert list((board / "previews").glob("samples-*.png"))
    assert "stopped" in run("runs", runs)
    assert f"next: eblvm train --resume {board}" in run("runs", "show", board)
    assert "next: eblvm eval" in run("train", "--resume", board)
    run(*BOARD, "--steps", "1500", "--out", tmp_path / "untouched")
    assert_bitwise_equal(final_state(board), final_state(tmp_path / "untouched"))

    # Train longer, fork with another method, sweep, compare.
    assert "1600 steps" in run("train", "--resume", board, "--steps", "1600")
    fork, sweep = runs / "fork", runs / "sweep"
    said = run("train", "--init", f"{board}@best", "--method", "vages-dsm", "--steps", "200", "--out", fork)
    assert f"starting from {board}, its best model" in said
    said = run("sweep", "checkerboard", "--method", "dsm", "--lr", "1e-3,1e-2", "--steps", "200", "--out", sweep)
    assert "next: eblvm eval" in said
    assert f"next: eblvm report {board} {fork}" in run("runs", "compare", board, fork)

    # Figures, a page, samples.
    said = run("eval", board)
    assert "test_log_likelihood" in said
    assert 0 <= said.index("to do: ") < said.index("test_log_likelihood")  # the plan comes before the results
    run("eval", fork)
    assert "test_log_likelihood" in run("eval", "--compare", board, fork, "--plot", tmp_path / "compare.png")
    said = run("report", board, fork, sweep, "--out", tmp_path / "day.html")
    assert "next: " in said
    assert "vages-dsm" in (tmp_path / "day.html").read_text()
    run("sample", board, "--count", "20", "--steps", "50")

    # Export: only the folder is needed in Python.
    assert "next: python" in run("export", board, "--out", tmp_path / "shared" / "board")
    for old in sorted(runs.rglob("*"), reverse=True):
        old.rmdir() if old.is_dir() else old.unlink()
    model = eblvm.load(tmp_path / "shared" / "board")
    assert model.sample(3, steps=5).shape == (3, 2)
    assert torch.isfinite(model.score(torch.rand(4, 2))).all()


def test_own_pictures_and_their_fid(tmp_path: Path) -> None:
    """Train on a folder of pictures of any size at 16 pixels; the FID of a folder with itself is 0."""
    random, photos = np.random.default_rng(0), tmp_path / "photos"
    photos.mkdir()
    for i in range(40):
        Image.fromarray(random.integers(0, 256, (20 + i % 3, 24, 3), dtype=np.uint8)).save(photos / f"{i:02}.png")
    out = tmp_path / "run"
    small = ["--width", "4", "--batch", "4", "--steps", "3", "--validations", "1", "--posterior-width", "4"]
    assert "images --size" in run("data", "info", photos, "--sheet", tmp_path / "sheet.png")
    run("train", "images", "--data", photos, "--size", "16", *small, "--out", out)
    assert eblvm.load(out, data=photos).saved.shape == (3, 16, 16)
    drawn = tmp_path / "drawn"
    assert f"next: eblvm fid {out / 'samples.pt'}" in run("sample", out, "--count", "5", "--steps", "2", "--png", drawn)
    try:
        inception.find()
    except eblvm.UserError as error:
        pytest.skip(str(error))
    few = tmp_path / "few"
    few.mkdir()
    for picture in sorted(photos.iterdir())[:5]:
        picture.rename(few / picture.name)
    said = run("fid", few, few)
    assert re.search(r"FID -?0\.0", said)
    assert "precision 1.000" in said
    assert "recall 1.000" in said
    assert float(re.search(r"FID (.*)", run("fid", drawn, few))[1]) > 1
