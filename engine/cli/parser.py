"""Parsers of commands: one-line errors that name the nearest valid options; options cannot be abbreviated."""

import argparse
import json
import shlex
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

from eblvm.engine.durable import write_atomic
from eblvm.engine.errors import UserError, unknown


class Parser(argparse.ArgumentParser):
    """A parser whose errors are `UserError`s, exit code 2. `examples` come last in the help."""

    def __init__(self, command: str, description: str = "", examples: tuple[str, ...] = (), **kwargs: Any):
        epilog = "examples:\n" + "\n".join(f"  {line}" for line in examples) if examples else None
        super().__init__(
            prog=f"eblvm {command}",
            description=description,
            epilog=epilog,
            allow_abbrev=False,
            formatter_class=partial(argparse.RawDescriptionHelpFormatter, max_help_position=30, width=100),
            **kwargs,
        )

    def error(self, message: str) -> NoReturn:
        raise UserError(f"{message}; see '{self.prog} --help'")

    def parse(self, argv: list[str]) -> argparse.Namespace:
        arguments, extra = self.parse_known_args(argv)
        if extra:
            raise unknown("option", extra[0], sorted(self._option_string_actions))
        return arguments

    def add_json(self) -> None:
        self.add_argument("--json", metavar="FILE", help="write the figures to FILE")


def at_least(arguments: argparse.Namespace, **lowest: int) -> None:
    for name, low in lowest.items():
        if (value := getattr(arguments, name)) is not None and value < low:
            raise UserError(f"got --{name} {value}, expected {low} or more")


def at_most(arguments: argparse.Namespace, **highest: int) -> None:
    """Refuse counts above these, which are typing errors, before anything is allocated for them."""
    for name, high in highest.items():
        if (value := getattr(arguments, name)) is not None and value > high:
            raise UserError(f"got --{name} {value}, expected at most {high:,}")


def integers(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(x) for x in text.split(","))
    except ValueError:
        expected = "expected integers separated by commas, such as 0,1,5,10"
        raise argparse.ArgumentTypeError(f"got {text!r}, {expected}") from None


def print_next(*commands: Sequence[object]) -> None:
    """Print commands to go on with, each given by its words, as they can be pasted into a shell."""
    print("next: " + "; ".join(shlex.join(["eblvm", *map(str, words)]) for words in commands))


def write_json(path: str | None, facts: dict[str, Any]) -> None:
    if path is not None:
        write_atomic(Path(path), (json.dumps(facts, indent=2) + "\n").encode())
