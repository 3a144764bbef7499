"""`eblvm bench pages`: the pages of docs/ that show records, filled in again, or checked."""

from eblvm.bench.subcommands.suite import fail
from eblvm.engine.cli.parser import Parser


def main(argv: list[str]) -> None:
    parser = Parser("bench pages", "Fill in the pages of docs/ from docs/templates/ and bench/records/.")
    parser.add_argument("--check", action="store_true", help="write nothing; exit code 1 if a page is older than these")
    arguments = parser.parse(argv)

    from eblvm.bench.pages import pages

    if arguments.check:
        if told := pages.stale():
            fail(told)
        print("pages and pictures are what templates and records give")
        return
    for name in pages.write():
        print(f"wrote docs/{name}")
