"""`eblvm sweep`: several seeds and learning rates of a recipe trained at once, one row each."""

from pathlib import Path

from eblvm.engine import tables
from eblvm.engine.cli.configuration import add_run_options, run_of
from eblvm.engine.cli.parser import Parser, print_next, write_json
from eblvm.engine.cli.train import preview, show
from eblvm.engine.errors import UserError
from eblvm.engine.runs import summary

USAGE = "eblvm sweep RECIPE --replicas R --lr X,X,... [options of eblvm train]"
EXAMPLES = (
    "eblvm sweep checkerboard --replicas 4 --lr 1e-3,3e-4 --steps 5000 --out runs/sweep",
    "eblvm sweep digits --method bidsm --replicas 8",
)


def main(argv: list[str]) -> None:
    text = "Train seeds and learning rates at once. Rows: all seeds of the first rate, then of the second, ..."
    parser = Parser("sweep", text, EXAMPLES, add_help=False, usage=USAGE)
    add_run_options(parser, places=True)
    parser.add_json()
    arguments = parser.parse(argv)
    arguments.out = arguments.out or (f"runs/{arguments.recipe}-sweep" if arguments.recipe else None)
    config, out, init = run_of(parser, arguments)
    if not config.replicated:
        raise UserError(
            "got a single run, expected several; add --replicas R for seeds, or --lr X,X for learning rates"
        )
    if arguments.dry_run:
        show(config)
        return

    from eblvm.engine.training.loop import train

    complete = train(config, out, init=init, preview=preview)
    rows = summary.replica_rows(Path(out), config)
    print(tables.text(summary.ROW_COLUMNS, [[f"{x:.5g}" if isinstance(x, float) else x for x in row] for row in rows]))
    write_json(arguments.json, {"columns": list(summary.ROW_COLUMNS), "rows": [list(row) for row in rows]})
    if complete:
        print_next(("eval", out), ("report", out))
