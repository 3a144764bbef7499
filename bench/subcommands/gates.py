"""`eblvm bench gates`: deterministic figures of a small set of cases against those recorded in the repository."""

from pathlib import Path

from eblvm.bench.subcommands.suite import fail
from eblvm.engine.cli.parser import Parser


def main(argv: list[str]) -> None:
    parser = Parser("bench gates", "Bytes, FLOPs and operator calls of a few cases against the recorded ones, to 2 %.")
    parser.add_argument("--update", action="store_true", help="record the present figures")
    parser.add_argument("--json", type=Path, metavar="FILE", help="their file (default bench/records/gates.json)")
    arguments = parser.parse(argv)

    from eblvm.bench.tools import gates

    if problems := gates.run(arguments.update, arguments.json or gates.PATH):
        fail(problems)
    passed = "gates passed: bytes, FLOPs and operator calls within 2 % of the record"
    print("gates recorded" if arguments.update else passed)
