"""The `profile` command."""

from pathlib import Path

from eblvm.engine.cli.configuration import add_run_options, configuration
from eblvm.engine.cli.parser import Parser, integers

OWN = ("N", "K")
EXAMPLES = (
    "eblvm profile freyface --N 0,1,5,10 --K 1,2,5,10",
    "eblvm profile checkerboard --unroll-optimizer sgd --json bench/records",
)


def main(argv: list[str]) -> None:
    description = "Time and memory of a training step over N and K, as a table, a record and a plot."
    usage = "eblvm profile RECIPE [options of train] [options]"
    parser = Parser("profile", description, EXAMPLES, add_help=False, usage=usage)
    add_run_options(parser, OWN)
    parser.add_argument("--N", type=integers, default=(0, 1, 5, 10), metavar="N,N,...", help="unrolled steps")
    parser.add_argument("--K", type=integers, default=(1, 2, 5, 10), metavar="K,K,...", help="real lower steps")
    parser.add_argument("--rounds", type=int, default=9, help="readings of every point")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the record here; a folder names it itself")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="plot (default profile-RECIPE.png)")
    arguments = parser.parse(argv)
    config = configuration(parser, arguments, OWN)

    from eblvm.bench.suites import profile
    from eblvm.bench.tools import record

    result = profile.run(config, arguments.N, arguments.K, arguments.rounds)
    print(profile.format_table(result))
    if arguments.json:
        print(f"wrote {record.write(result, arguments.json)}")
    path = arguments.plot or Path(f"profile-{config.recipe}.png")
    profile.plot(result, path)
    print(f"wrote {path}")
