"""The `eblvm` command. Each subcommand is a function here; options of `train` come from the fields of `Config`."""

import argparse
import sys
import typing
from dataclasses import Field, fields
from pathlib import Path
from typing import Any, NoReturn

from eblvm.engine import recipes
from eblvm.engine.config import Config
from eblvm.engine.errors import Diverged, UserError, unknown


class Parser(argparse.ArgumentParser):
    """Errors as one line with the nearest valid names, exit code 2."""

    def error(self, message: str) -> NoReturn:
        raise UserError(f"{message}; see 'eblvm --help'")


def numbers(text: str) -> tuple[float, ...]:
    return tuple(float(x) for x in text.split(","))


def option_type(f: "Field[Any]") -> Any:
    """The parser of a field's text, by its annotation."""
    kind = typing.get_type_hints(Config)[f.name]
    if typing.get_origin(kind) is tuple:
        return numbers
    arguments = [a for a in typing.get_args(kind) if a is not type(None)]
    return arguments[0] if arguments else kind


def add_config_options(parser: argparse.ArgumentParser) -> None:
    for f in fields(Config):
        if f.name == "recipe":
            continue
        flag = "--" + f.name.replace("_", "-")
        values = ", ".join(f.metadata["choices"])
        help_text = f.metadata["help"] + (f" ({values})" if values else "")
        if option_type(f) is bool:
            parser.add_argument(flag, action=argparse.BooleanOptionalAction, default=None, help=help_text)
        else:
            parser.add_argument(flag, type=option_type(f), default=None, help=help_text, metavar=f.name.upper())


def config_from(arguments: argparse.Namespace) -> Config:
    given = {f.name: getattr(arguments, f.name) for f in fields(Config) if f.name != "recipe"}
    return recipes.recipe(arguments.recipe).replaced(**{k: v for k, v in given.items() if v is not None})


def command_train(arguments: argparse.Namespace) -> None:
    from eblvm.engine.train import train

    config = config_from(arguments)
    config.validate()
    if arguments.dry_run:
        for f in fields(config):
            print(f"{f.name:18} {getattr(config, f.name)}")
        return
    out = Path(arguments.out or f"runs/{config.recipe}-{config.method}")
    train(config, out)


def build_parser() -> Parser:
    parser = Parser(prog="eblvm", description="Training engine for energy-based latent variable models.")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", parser_class=Parser)
    train = commands.add_parser("train", help="train a recipe, or continue a run")
    train.add_argument("recipe", metavar="RECIPE", help=", ".join(recipes.RECIPES))
    train.add_argument("--out", help="run folder (default runs/RECIPE-METHOD)")
    train.add_argument("--dry-run", action="store_true", help="print the configuration and stop")
    add_config_options(train)
    train.set_defaults(run=command_train)
    return parser


def main(argv: list[str] | None = None) -> int:
    parser = build_parser()
    try:
        arguments, extra = parser.parse_known_args(argv)
        if arguments.command is None:
            parser.print_help()
            return 0
        if extra:
            subparser = parser._subparsers._group_actions[0].choices[arguments.command]  # type: ignore[union-attr,index]
            raise unknown("option", extra[0], sorted(subparser._option_string_actions))
        arguments.run(arguments)
        return 0
    except (UserError, Diverged) as error:
        print(f"eblvm: {error}", file=sys.stderr)
        return error.exit_code


if __name__ == "__main__":
    sys.exit(main())
