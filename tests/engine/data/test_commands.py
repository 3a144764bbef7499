"""`eblvm data prepare` and `eblvm data info`."""

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from eblvm.engine.cli import main
from eblvm.engine.recipes import arguments as arguments_of
from eblvm.engine.recipes import recipe

from .conftest import write_mnist


def test_info_says_what_it_is_and_draws_a_sheet(mnist: dict, tmp_path: Path, capsys, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    folder = write_mnist(tmp_path / "mnist", mnist, packed=True)
    assert main(["data", "info", str(folder), "--json", "facts.json"]) == 0
    said = capsys.readouterr().out
    assert "MNIST, idx files" in said
    assert "train             40 images, 1x28x28, labels 0 to 9" in said
    assert "published files   no, others of the same form" in said
    facts = json.loads(Path("facts.json").read_text())
    assert facts["splits"]["test"] == {"count": 10, "shape": [1, 28, 28]}
    with Image.open("mnist-sheet.png") as sheet:
        pixels = np.asarray(sheet.convert("L")).astype(int)
    scale = pixels.shape[1] // 290
    first = pixels[scale // 2 : 28 * scale : scale, scale // 2 : 28 * scale : scale]
    assert np.abs(first - mnist["x_train"][0]).max() <= 1


def test_prepare_then_info(pictures: Path, tmp_path: Path, capsys) -> None:
    store = tmp_path / "store"
    assert main(["data", "prepare", str(pictures), str(store), "--size", "16"]) == 0
    assert "all               24 images, 3x16x16" in capsys.readouterr().out
    for path in (store, pictures):
        assert main(["data", "info", str(path), "--sheet", str(tmp_path / "sheet.png")]) == 0
        with Image.open(tmp_path / "sheet.png") as sheet:
            assert min(sheet.size) > 50
    assert "pictures of any size" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ("data", "give a command, 'eblvm data prepare SRC DST' or"),
        ("data info nowhere", "nowhere does not exist"),
        ("data prepare nowhere store", "nowhere does not exist"),
        ("data prepare . store --size 0", "got --size 0, expected 1 or more"),
        ("data prepare . store --skip 2", "got --skip 2.0, expected a fraction from 0 to 1"),
        ("data prepare . store", "has no .jpg or .png pictures and no other data set"),
        ("train checkerboard --input dali", "data set 'checkerboard' does not read --input; it is an option of"),
        ("train checkerboard --flip", "data set 'checkerboard' does not read --flip; it is an option of"),
        ("bench toy --data .", "unknown option '--data'; valid: --compile, --contestants, --device"),
    ],
)
def test_bad_input(arguments: str, sentence: str, capsys, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(arguments.split()) == 2
    error = capsys.readouterr().err
    assert sentence in error
    assert error.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_a_runs_command_names_no_folders() -> None:
    config = recipe("celeba64").replaced(data="/somewhere/celeba", cache="/elsewhere", input="dali", flip=False)
    assert arguments_of(config) == ["--data celeba", "--input dali", "--no-flip"]
