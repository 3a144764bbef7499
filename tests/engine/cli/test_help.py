"""Help: commands in groups by task; each command's help fits a screen and ends with examples of real commands."""

import re
import shlex
from contextlib import suppress

import pytest

from eblvm.engine.cli import GROUPS, commands, main, overview

SCREEN = 50  # lines
COLUMNS = 100


def test_commands_are_grouped_by_task() -> None:
    text = overview()
    assert [title for title in GROUPS.values() if f"\n{title}:\n" in text] == list(GROUPS.values())
    for name, command in commands().items():
        assert re.search(rf"^  {name} +{re.escape(command.help)}$", text, re.MULTILINE), name
    assert len(text.splitlines()) <= SCREEN


@pytest.mark.parametrize("name", [*commands(), "runs show", "runs compare", "runs clean", "data prepare", "data info"])
def test_a_help_fits_a_screen_and_ends_with_two_examples(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with suppress(SystemExit):  # argparse exits this way
        main([*name.split(), "--help"])
    text = capsys.readouterr().out.rstrip()
    assert len(text.splitlines()) <= SCREEN
    examples = text.partition("\nexamples:\n")[2].splitlines()
    assert len(examples) >= 2
    assert all(len(line) <= COLUMNS for line in text.splitlines())
    for line in examples:
        words = shlex.split(line, comments=True)
        assert words[0] == "eblvm"
        assert words[1] in commands()
