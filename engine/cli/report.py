"""`eblvm report`: a run in one table and one picture."""

from pathlib import Path

from eblvm.engine.cli.parser import Parser, write_json

EXAMPLES = ("eblvm report runs/board", "eblvm report runs/board --json board.json")


def main(argv: list[str]) -> None:
    parser = Parser("report", "The newest figures of a run, and its curves in DIR/curves.png.", EXAMPLES)
    parser.add_argument("dir", metavar="DIR", help="run folder")
    parser.add_json()
    arguments = parser.parse(argv)

    from eblvm.engine.evaluation.report import report

    facts = report(Path(arguments.dir))
    print(f"{arguments.dir}: {facts['recipe']} {facts['method']}, step {facts['step']} of {facts['steps']}")
    for name, value in {**facts["last"], **(facts["eval"] or {})}.items():
        print(f"  {name:24} {value if isinstance(value, str) else format(value, '.6g')}")
    print(f"curves: {Path(arguments.dir) / 'curves.png'}")
    write_json(arguments.json, facts)
