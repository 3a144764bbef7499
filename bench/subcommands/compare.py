"""`eblvm bench compare BASE`: this working tree against another commit."""

import sys
from pathlib import Path

from eblvm.bench.subcommands.suite import fail, show
from eblvm.engine.cli.parser import Parser, at_least
from eblvm.engine.errors import UserError, unknown

COUNTING = ("auto", "callgrind", "no")
EXAMPLES = ("eblvm bench compare main", "eblvm bench compare main --minutes 5 --only method=dsm,method=mdsm")


def main(argv: list[str]) -> None:
    parser = Parser("bench compare", "This working tree against another commit, on this machine, by turns.", EXAMPLES)
    parser.add_argument("base", metavar="BASE", nargs="?", help="the commit to compare with")
    parser.add_argument("--suite", metavar="SUITE", default="gates", help="the cases: gates (default), grbm or toy")
    parser.add_argument("--minutes", type=float, metavar="X", help="the time it has, building included (default 10)")
    parser.add_argument("--rounds", type=int, metavar="N", help="rounds of a block, in place of --minutes")
    parser.add_argument("--only", metavar="TEXT,..", default="", help="cases whose name contains one of these texts")
    parser.add_argument(
        "--instructions", metavar="HOW", default=COUNTING[0],
        help="auto (the processor's counter, where there is one; the default), callgrind (valgrind; minutes) or no",
    )  # fmt: skip
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the record here")
    arguments = parser.parse(argv)
    if arguments.base is None:
        raise UserError("'eblvm bench compare' needs a commit to compare with, such as 'eblvm bench compare main'")
    if arguments.minutes is not None and not 0 < arguments.minutes < float("inf"):
        raise UserError(f"got minutes={arguments.minutes:g}, expected more than 0")
    at_least(arguments, rounds=1)
    if arguments.instructions not in COUNTING:
        raise unknown("way of counting instructions", arguments.instructions, list(COUNTING))
    print(f"comparing the working tree with {arguments.base}", file=sys.stderr, flush=True)  # before torch is imported

    from eblvm.bench.tools import compare, record

    record.commit()  # of the code that is loaded: the working tree may go on while it measures
    budget = compare.Budget(arguments.minutes or compare.MINUTES, arguments.rounds)
    measured, failures = compare.run(
        arguments.base, Path.cwd(), arguments.suite, budget, arguments.only, arguments.instructions
    )
    command = f"eblvm bench compare {arguments.base} --suite {arguments.suite}"
    result = compare.as_record(arguments.base, arguments.suite, measured, command)
    show(compare.format_table(measured), result, arguments.json)
    if failures:
        fail(failures)
    print("gates passed: bytes, FLOPs, operator calls and instructions within 2 %, no slow-down that repeats")
