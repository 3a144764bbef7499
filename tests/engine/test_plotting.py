"""Plots: one style, the format by the name, and no change to the reader's own matplotlib."""

import subprocess
import sys
from pathlib import Path

import matplotlib
import pytest
from PIL import Image

from eblvm.engine.cli import main
from eblvm.engine.errors import UserError
from eblvm.engine.plotting import facts_digest, save, styled, subplots

ROOT = Path(__file__).parents[2]
STARTS = {"png": b"\x89PNG", "pdf": b"%PDF", "svg": b"<?xml"}


@styled
def drawn(path: Path, of: object = None) -> None:
    figure, ax = subplots(figsize=(2, 2))
    ax.plot([0, 1], [0, 1])
    assert not ax.spines["top"].get_visible()
    save(figure, path, of)


@pytest.mark.parametrize("suffix", STARTS)
def test_the_name_says_the_format(suffix: str, tmp_path: Path) -> None:
    before = dict(matplotlib.rcParams)
    path = tmp_path / "new" / f"plot.{suffix}"
    drawn(path, {"a": 1})
    content = path.read_bytes()
    assert content.startswith(STARTS[suffix])
    assert facts_digest({"a": 1}).encode() in content
    drawn(path, {"a": 1})
    assert path.read_bytes() == content  # no date in it
    assert dict(matplotlib.rcParams) == before


def test_another_name_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"cannot draw .*plot\.docx; give a name that ends in \.png, \.pdf or \.svg"):
        drawn(tmp_path / "plot.docx")
    assert not list(tmp_path.iterdir())


def test_a_plan_for_a_paper(tmp_path: Path) -> None:
    command = "plan digits --model deep --checkpoint none --N 0,1 --plot".split()
    assert main([*command, str(tmp_path / "plan.svg")]) == 0
    text = (tmp_path / "plan.svg").read_text()
    assert "GiB per process" in text  # text, not outlines
    assert main([*command, str(tmp_path / "plan.txt")]) == 2


def test_importing_the_plots_leaves_the_backend_alone() -> None:
    code = (
        "import matplotlib; matplotlib.use('svg'); import eblvm.engine.evaluation.plots, sys; "
        "assert matplotlib.get_backend() == 'svg'; assert 'matplotlib.pyplot' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_every_plot_is_saved_here() -> None:
    others = [path for folder in ("engine", "bench") for path in (ROOT / folder).rglob("*.py")]
    assert [p.name for p in others if "savefig(" in p.read_text() or "pyplot" in p.read_text()] == ["plotting.py"]


def test_a_picture_keeps_what_it_was_made_from(tmp_path: Path) -> None:
    drawn(tmp_path / "plot.png", [1.5])
    assert Image.open(tmp_path / "plot.png").text["Description"] == facts_digest([1.5])
