"""`eblvm bench history`: every record over its commits."""

from pathlib import Path

from eblvm.engine.cli.parser import Parser
from eblvm.engine.errors import UserError


def main(argv: list[str]) -> None:
    parser = Parser("bench history", "Every record over its commits: a page, or figures for github-action-benchmark.")
    parser.add_argument("--html", type=Path, metavar="FILE", help="write a page with a chart per row")
    parser.add_argument("--action", type=Path, metavar="FILE", help="write the newest figures in its format")
    parser.add_argument("--json", type=Path, metavar="FOLDER", help="the folder of records (default bench/records)")
    arguments = parser.parse(argv)
    if arguments.html is None and arguments.action is None:
        raise UserError(
            "'eblvm bench history' needs --html FILE, a page, or --action FILE, for github-action-benchmark"
        )

    from eblvm.bench.tools import action, history, records

    loaded = history.load(arguments.json or records.RECORDS)
    if arguments.html:
        history.write(loaded, arguments.html)
        print(f"wrote {arguments.html}: {len(loaded)} records")
    if arguments.action:
        count = action.write(action.of_records(loaded), arguments.action)
        print(f"wrote {arguments.action}: {count} figures")
