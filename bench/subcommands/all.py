"""`eblvm bench all [--contestants]`: the standard suites one after the other."""

from pathlib import Path

from eblvm.bench.subcommands import suite
from eblvm.bench.suites import SUITES
from eblvm.engine.cli.parser import Parser, at_least
from eblvm.engine.errors import UserError


def main(argv: list[str]) -> None:
    parser = Parser("bench all", "The standard suites one after the other, a record of each.")
    parser.add_argument(suite.CONTESTANTS, action="store_true", help=suite.INSTEAD)
    parser.add_argument("--rounds", type=int, metavar="N", help="readings of every step (default: that of each suite)")
    parser.add_argument("--data", metavar="PATH", help="the folder of CelebA's pictures, for suite 'data'")
    parser.add_argument("--json", type=Path, metavar="FOLDER", help="write each record after those of its kind here")
    arguments = parser.parse(argv)
    at_least(arguments, rounds=1)
    if arguments.json is not None and not arguments.json.is_dir():
        raise UserError(f"'eblvm bench all' writes a record per suite, got --json {arguments.json}; give a folder")
    for name, one in SUITES.items():
        if not arguments.contestants and one.standard:
            suite.measure(suite.with_options(one, vars(arguments)), arguments.json)
        elif arguments.contestants and one.contested:
            data = Path(arguments.data) if arguments.data and name == "data" else None
            suite.measure_contest(name, arguments.rounds or suite.ROUNDS, data, arguments.json)
