"""`eblvm runs`: list runs; show, compare or clean them."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from eblvm.engine import recipes, tables
from eblvm.engine.cli.parser import Parser, print_next, write_json
from eblvm.engine.errors import UserError
from eblvm.engine.runs import checkpoint, summary
from eblvm.engine.runs.summary import RunSummary, age_text, size_text, summarise

EXAMPLES = ("eblvm runs", "eblvm runs compare runs/board runs/dsm")
COLUMNS = ("run", "recipe", "method", "step", "best validation", "state", "size", "changed")


def main(argv: list[str]) -> None:
    kinds: dict[str, Callable[[list[str]], None]] = {"show": show, "compare": compare, "clean": clean}
    if argv and argv[0] in kinds and not Path(argv[0]).is_dir():
        return kinds[argv[0]](argv[1:])
    text = (
        "The runs in a folder. 'eblvm runs show RUN' shows more of one, 'eblvm runs compare RUN RUN ...' what\n"
        "differs, 'eblvm runs clean RUN ...' what can be removed."
    )
    parser = Parser("runs", text, EXAMPLES)
    parser.add_argument("dir", metavar="FOLDER", nargs="?", default="runs", help="folder of runs (runs)")
    parser.add_json()
    arguments = parser.parse(argv)
    folder = Path(arguments.dir)
    summaries = [summarise(run) for run in summary.runs_in(folder)]
    if not summaries:
        print(f"no runs in {folder}; start one: eblvm train checkerboard --out {folder / 'board'}")
    else:
        print(tables.text(COLUMNS, [row(run) for run in summaries]))
        print_next(("runs", "show", summaries[-1].folder), ("report", summaries[-1].folder))
    write_json(arguments.json, {"runs": [facts(run) for run in summaries]})


def row(run: RunSummary) -> list[str]:
    best = "-" if run.best is None else f"{run.best[0]:.5g} @ {run.best[1]}"
    return [
        str(run.folder), run.config.recipe, run.config.method.kind, f"{run.step}/{run.steps}", best, run.state,
        size_text(run.size), age_text(run.changed),
    ]  # fmt: skip


def facts(run: RunSummary) -> dict[str, Any]:
    return {
        "run": str(run.folder), "recipe": run.config.recipe, "method": run.config.method.kind, "step": run.step,
        "steps": run.steps, "state": run.state, "bytes": run.size, "last": run.last, "parent": run.parent,
        "best": None if run.best is None else {"validation": run.best[0], "step": run.best[1]},
    }  # fmt: skip


def figure(value: Any) -> str:
    """A figure that is a sentence says why it is not known."""
    return "-" if value is None else f"{value:.6g}" if isinstance(value, int | float) else str(value)


def show(argv: list[str]) -> None:
    parser = Parser("runs show", "One run: what it is, how far it came, what to do next.", (
        "eblvm runs show runs/board", "eblvm runs show runs/board --json board.json"))  # fmt: skip
    parser.add_argument("dir", metavar="RUN", help="run folder")
    parser.add_json()
    arguments = parser.parse(argv)
    run = summarise(Path(arguments.dir))
    print(f"{run.folder}: {run.state}, step {run.step} of {run.steps}, {size_text(run.size)}, {age_text(run.changed)}")
    print(f"  made by      {recipes.command(run.config) or '(a model of its own: eblvm.train in Python)'}")
    if run.parent:
        print(f"  started from {run.parent['run']}, its {run.parent['model']} model at step {run.parent['step']}")
        for change in run.parent["changes"]:
            print(f"    changed    {change}")
    kept = sorted(checkpoint.steps(run.folder / "checkpoints"))
    print(f"  checkpoints  {', '.join(map(str, kept)) or 'none'}")
    if run.best:
        print(f"  validation   best {run.best[0]:.6g} at step {run.best[1]}")
    for name, value in run.last.items():
        if name != "step":
            text = f"{min(value):.6g} to {max(value):.6g}" if isinstance(value, list) else f"{value:.6g}"
            print(f"  {name:20} {text}")
    if run.config.replicated:
        rows = summary.replica_rows(run.folder, run.config)
        print(tables.text(summary.ROW_COLUMNS, [[f"{x:.5g}" if isinstance(x, float) else x for x in r] for r in rows]))
    evaluation = summary.evaluation_of(run.folder)
    for name, value in (evaluation or {}).get("mean", {}).items():
        print(f"  {name:28} {figure(value)}")
    if run.state == "stopped":
        print_next(("train", "--resume", run.folder))
    elif evaluation is None:
        print_next(("eval", run.folder), ("report", run.folder))
    else:
        print_next(("report", run.folder), ("export", run.folder))
    write_json(arguments.json, facts(run) | {"evaluation": evaluation})


def compare(argv: list[str]) -> None:
    parser = Parser("runs compare", "The options in which runs differ, and how far each came; the best in brackets.", (
        "eblvm runs compare runs/board runs/dsm", "eblvm runs compare runs/a runs/b --json ab.json"))  # fmt: skip
    parser.add_argument("dirs", metavar="RUN", nargs="+", help="run folders")
    parser.add_json()
    arguments = parser.parse(argv)
    if len(arguments.dirs) < 2:
        raise UserError("got one run, expected two or more to compare")
    runs = [summarise(Path(d)) for d in arguments.dirs]
    values = [{"recipe": r.config.recipe} | {leaf.name: leaf.value for leaf in r.config.leaves()} for r in runs]
    names = dict.fromkeys(name for v in values for name in v)
    differing = [n for n in names if len({repr(v.get(n)) for v in values}) > 1 and n != "data"]
    table = [[name, *("-" if name not in v else str(v[name]) for v in values)] for name in differing]
    table += [["step", *(f"{r.step}/{r.steps}" for r in runs)], ["state", *(r.state for r in runs)]]
    figures: dict[str, list[Any]] = {"best validation": [r.best and r.best[0] for r in runs]}
    evaluations = [summary.evaluation_of(r.folder) or {} for r in runs]
    for name in dict.fromkeys(n for e in evaluations for n in e.get("mean", {})):
        figures[name] = [e.get("mean", {}).get(name) for e in evaluations]
    table += [[name, *(figure(x) for x in row)] for name, row in figures.items()]
    print(tables.text(("", *(str(r.folder) for r in runs)), table))
    if len({r.config.method.kind for r in runs}) > 1:
        print("validation losses of different methods are of different losses: compare evaluations, 'eblvm eval RUN'")
    print_next(("report", *arguments.dirs))
    write_json(arguments.json, {"runs": arguments.dirs, "differences": differing, "figures": figures})


def clean(argv: list[str]) -> None:
    text = "What finished runs do not need (older checkpoints, damaged files, samples); --yes removes it."
    parser = Parser("runs clean", text, ("eblvm runs clean runs/board", "eblvm runs clean runs/* --yes"))
    parser.add_argument("dirs", metavar="RUN", nargs="+", help="run folders")
    parser.add_argument("--yes", action="store_true", help="remove it")
    arguments = parser.parse(argv)
    total = 0
    for run in (summarise(Path(d)) for d in arguments.dirs):
        if run.state == "training":
            print(f"{run.folder} is being trained: left alone")
            continue
        files = summary.removable(run.folder)
        size = sum(f.lstat().st_size for f in files)
        total += size
        print(f"{run.folder}: {len(files)} files, {size_text(size)}")
        for file in files if arguments.yes else ():
            file.unlink()
        for name in summary.REMOVABLE if arguments.yes else ():
            shutil.rmtree(run.folder / name, ignore_errors=True)
    if arguments.yes:
        print(f"removed {size_text(total)}")
        print_next(("runs", Path(arguments.dirs[0]).parent))
    else:
        print(f"{size_text(total)} could go")
        print_next(("runs", "clean", *arguments.dirs, "--yes"))
