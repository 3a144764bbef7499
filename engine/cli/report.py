"""`eblvm report`: runs in one HTML page, and a table of the newest figures."""

from pathlib import Path

from eblvm.engine.cli.parser import Parser, print_next, write_json
from eblvm.engine.durable import write_atomic
from eblvm.engine.errors import UserError
from eblvm.engine.reporting.page import collect, page
from eblvm.engine.runs.folder import read_config

EXAMPLES = ("eblvm report runs/board", "eblvm report runs/board runs/dsm --out compared.html")


def main(argv: list[str]) -> None:
    text = "One self-contained HTML page of runs: options, curves, figures, pictures. It needs no network."
    parser = Parser("report", text, EXAMPLES)
    parser.add_argument("dirs", metavar="RUN", nargs="+", help="run folders")
    parser.add_argument("--out", metavar="FILE", help="the page (default RUN/report.html; report.html of several)")
    parser.add_json()
    arguments = parser.parse(argv)
    folders = [Path(d) for d in arguments.dirs]
    labels = names(folders)
    for folder in folders:
        read_config(folder)  # report a folder that is not a run before torch is imported

    from eblvm.engine.evaluation.report import report

    reports = [report(folder) for folder in folders]
    for folder, facts in zip(folders, reports, strict=True):
        print(f"{folder}: {facts['recipe']} {facts['method']}, step {facts['step']} of {facts['steps']}")
        for name, value in {**facts["last"], **(facts["eval"] or {})}.items():
            print(f"  {name:28} {value if isinstance(value, str) else f'{value:.6g}'}")
    several = len(folders) > 1
    out = Path(arguments.out or ("report.html" if several else folders[0] / "report.html"))
    runs = [collect(folder, label) for folder, label in zip(folders, labels, strict=True)]
    write_atomic(out, page(runs).encode())
    print(f"page: {out}; curves: {', '.join(str(folder / 'curves.png') for folder in folders)}")
    missing = [folder for folder, facts in zip(folders, reports, strict=True) if facts["eval"] is None]
    if missing:
        print_next(("eval", missing[0]), ("report", *folders, *(["--out", out] if arguments.out else [])))
    else:
        print(f"open {out} in a browser")
        print_next(("export", folders[0]))
    write_json(arguments.json, {"runs": reports} if several else reports[0])


def names(folders: list[Path]) -> list[str]:
    """Of the folders, as short as they stay different."""
    if len(set(folders)) < len(folders):
        raise UserError("got the same folder twice; report different runs")
    short = [folder.resolve().name for folder in folders]
    return short if len(set(short)) == len(short) else [str(folder) for folder in folders]
