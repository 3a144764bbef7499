"""The documents: commands that exist, pages that run as written."""

import re
from pathlib import Path

import pytest
import torch

from eblvm.engine.cli import WITH, commands
from eblvm.engine.cli.configuration import add_run_options
from eblvm.engine.cli.parser import Parser

ROOT = Path(__file__).parents[2]
ADDING = ROOT / "docs" / "tutorials" / "adding-a-method.md"  # its method exists while test_tutorials.py runs it
PAGES = [ROOT / "README.md", *sorted(page for page in (ROOT / "docs").rglob("*.md") if page != ADDING)]


def shown(page: Path) -> list[list[str]]:
    """The words of every `eblvm ...` in code, without comments."""
    code = re.findall(r"```[a-z]*\n(.*?)```|`([^`\n]+)`", page.read_text(), re.DOTALL)
    lines = [line.partition(" #")[0] for block in code for part in block for line in re.split(r"[\n;]", part)]
    return [line.split() for line in lines if line.strip().startswith("eblvm ")]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_commands_and_options_that_are_shown_exist(page: Path) -> None:
    parser = Parser("train", add_help=False)
    add_run_options(parser, places=True)
    known = {*parser._option_string_actions, "--resume", "--json", WITH}
    for words in shown(page):
        name = words[1].strip("[]")
        if name.isupper() or name.startswith("-"):
            continue
        assert name in commands(), " ".join(words)
        if name in ("train", "sweep"):
            flags = {w.strip("[]").partition("=")[0] for w in words if w.startswith(("--", "[--"))}
            assert flags <= known, (" ".join(words), flags - known)


def test_start_here_runs_as_written(tmp_path: Path) -> None:
    (code,) = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "start.md").read_text(), re.DOTALL)
    names: dict = {"out": tmp_path / "board", "shared": tmp_path / "shared"}
    exec(code, names)
    assert torch.equal(names["again"].score(names["v"]), names["scores"])
    assert names["means"].shape == (5, 4)
    assert names["samples"].shape == (10, 2)
