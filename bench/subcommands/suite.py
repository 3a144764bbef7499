"""`eblvm bench SUITE`: a suite with its own options, or, with --contestants, other libraries next to the engine."""

import argparse
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

from eblvm.bench.subcommands import JSON_HELP
from eblvm.bench.suites import SUITES, Suite
from eblvm.bench.tools.records import Record
from eblvm.engine.cli.parser import Parser, at_least
from eblvm.engine.errors import UserError, unknown
from eblvm.engine.options import flag
from eblvm.engine.values import checked, range_text

CONTESTANTS = "--contestants"
ROUNDS = 5  # of a contest
METAVARS: Mapping[Any, str] = {int: "N", float: "X"}
INSTEAD = "measure other libraries next to the engine instead"


def main(name: str, argv: list[str]) -> None:
    suite = SUITES[name]
    if suite.contested and CONTESTANTS in argv:
        contest(name, [word for word in argv if word != CONTESTANTS])
        return
    parser = Parser(f"bench {name}", suite.help[0].upper() + suite.help[1:] + ".")
    add_options(parser, suite)
    if suite.contested:
        parser.add_argument(CONTESTANTS, action="store_true", help=INSTEAD)
    add_json(parser)
    arguments = parsed(parser, argv, name)
    measure(with_options(suite, vars(arguments)), arguments.json)


def contest(name: str, argv: list[str]) -> None:
    parser = Parser(f"bench {name} {CONTESTANTS}", "The engine's step next to what other libraries give, case by case.")
    parser.add_argument("--rounds", type=int, default=ROUNDS, metavar="N", help=f"readings of every step ({ROUNDS})")
    if "data" in {leaf.name for leaf in SUITES[name].leaves()}:
        parser.add_argument("--data", type=Path, metavar="PATH", help="the folder of CelebA's pictures")
    add_json(parser)
    arguments = parsed(parser, argv, name)
    at_least(arguments, rounds=1)
    measure_contest(name, arguments.rounds, getattr(arguments, "data", None), arguments.json)


def parsed(parser: Parser, argv: list[str], name: str) -> argparse.Namespace:
    arguments, extra = parser.parse_known_args(argv)
    if extra and not extra[0].startswith("-"):
        raise UserError(f"got {extra[0]!r} after suite {name!r}, expected one suite and its options; remove it")
    if extra:
        raise unknown("option", extra[0].partition("=")[0], sorted(parser._option_string_actions))
    return arguments


def add_options(parser: Parser, suite: Suite) -> None:
    """A flag for each option that the suite declares."""
    for leaf in suite.leaves():
        facts = leaf.field.metadata
        limits = ", ".join(filter(None, [range_text(facts), default_text(leaf.value)]))
        text = facts["help"] + (f" ({limits})" if limits else "")
        if leaf.type is bool:
            parser.add_argument(flag(leaf.name), action="store_true", default=None, help=text)
        else:
            parser.add_argument(flag(leaf.name), metavar=METAVARS.get(leaf.type, "TEXT"), help=text.replace("%", "%%"))


def default_text(value: Any) -> str:
    if value is None or value == "" or value == () or value is False:
        return ""
    return "default " + (",".join(map(str, value)) if isinstance(value, tuple) else str(value))


def with_options(suite: Suite, given: Mapping[str, Any]) -> Suite:
    """The suite with those of the given options that it reads, each checked."""
    changes = {}
    for leaf in suite.leaves():
        if (value := given.get(leaf.name)) is not None:
            changes[leaf.name] = checked(leaf, leaf.parsed(value) if isinstance(value, str) else value)
    return replace(suite, **changes)


def add_json(parser: Parser) -> None:
    parser.add_argument("--json", type=Path, metavar="FILE", help=JSON_HELP)


def measure(suite: Suite, json: Path | None) -> None:
    """Run a suite, print its table, write its record; a bar that it misses is exit code 1."""
    from eblvm.bench.tools import agreement, record

    record.commit()  # of the code that is loaded: the working tree may go on while it measures
    try:
        result = suite.run()
    except agreement.AgreementError as error:
        fail([str(error)])
    show(suite.format_table(result), result, json)
    if missed := suite.problems(result):
        fail(missed)


def measure_contest(name: str, rounds: int, data: Path | None, json: Path | None) -> None:
    from eblvm.bench.contest import contest
    from eblvm.bench.tools import agreement, record

    record.commit()  # of the code that is loaded: the working tree may go on while it measures
    try:
        result = contest.run(name, rounds, data)
    except agreement.AgreementError as error:
        fail([str(error)])
    show(contest.format_table(result), result, json)


def show(table: str, result: Record, json: Path | None) -> None:
    from eblvm.bench.tools import record

    print(table)
    if json is not None:
        print(f"wrote {record.write(result, json)}")


def fail(problems: list[str]) -> NoReturn:
    for problem in problems:
        print(f"gate failed: {problem}", file=sys.stderr)
    raise SystemExit(1)
