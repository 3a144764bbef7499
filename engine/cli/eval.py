"""`eblvm eval`: every figure that a run can be judged by."""

import argparse
import dataclasses
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from eblvm.engine import tables
from eblvm.engine.cli.parser import Parser, at_least, at_most, print_next, write_json
from eblvm.engine.cli.sample import add_run
from eblvm.engine.errors import UserError
from eblvm.engine.runs.folder import read_config

if TYPE_CHECKING:
    from eblvm.engine.evaluation import EvalOptions
    from eblvm.engine.runs.saved import SavedRun

EXAMPLES = ("eblvm eval runs/mnist --fid 1000 --ood svhn=svhn.npz", "eblvm eval --compare runs/frey runs/dsm")


def shard(text: str) -> tuple[int, int]:
    if text == "torchrun":
        if "RANK" not in os.environ or "WORLD_SIZE" not in os.environ:
            raise argparse.ArgumentTypeError("there is no RANK and WORLD_SIZE of torchrun; give R/W such as 0/4")
        text = f"{os.environ['RANK']}/{os.environ['WORLD_SIZE']}"
    rank, _, of = text.partition("/")
    if not (rank.isdigit() and of.isdigit() and int(rank) < int(of)):
        raise argparse.ArgumentTypeError(f"got {text!r}, expected R/W such as 0/4, 1/4, 2/4 and 3/4")
    return int(rank), int(of)


def named_path(text: str) -> tuple[str, Path]:
    """NAME=PATH, or a path that is its own name."""
    name, equals, path = text.partition("=")
    return (name, Path(path)) if equals else (Path(text).stem, Path(text))


def build_parser() -> Parser:
    parser = Parser("eval", "Figures and pictures of a run: DIR/eval.json and the files next to it.", EXAMPLES)
    parser.add_argument("dir", metavar="DIR", nargs="?", help="run folder")
    parser.add_argument("--compare", nargs="+", metavar="DIR", help="a table and a plot of runs that were evaluated")
    parser.add_argument("--plot", type=Path, default=Path("compare.png"), help="of --compare (compare.png)")
    parser.add_argument("--fid", type=int, metavar="COUNT", help="FID and KID of COUNT samples, kept in DIR/drawn")
    parser.add_argument("--samples", type=Path, metavar="PATH", help="samples from a folder, .npz or .pt, not drawn")
    parser.add_argument("--reference", type=int, metavar="COUNT", help="training images of the FID (all of them)")
    parser.add_argument("--inception", type=Path, metavar="FILE", help="Inception weights, if not the installed ones")
    text = "every W-th chunk of --fid, from the R-th; or torchrun"
    parser.add_argument("--shard", type=shard, metavar="R/W", help=text)
    text = "other images that log p~(v) is to tell from the test set; may be given again"
    parser.add_argument("--ood", type=named_path, action="append", default=[], metavar="[NAME=]PATH", help=text)
    parser.add_argument("--draw", type=int, metavar="COUNT", help="samples for pictures and nearest neighbours")
    parser.add_argument("--steps", type=int, help="steps of the sampler, as in 'eblvm sample'")
    parser.add_argument("--kind", help="kind of sample of a deep model, as in 'eblvm sample'")
    parser.add_argument("--seed", type=int, default=0, help="of the samples")
    parser.add_argument("--step", type=int, help="evaluate the checkpoint of this step, not the newest")
    parser.add_argument("--again", action="store_true", help="compute what is in eval.json already")
    parser.add_argument("--ais", action="store_true", help="estimate log Z by AIS even where it is exact")
    parser.add_argument("--chains", type=int, default=2000, help="AIS chains")
    parser.add_argument("--temperatures", type=int, default=2000, help="AIS temperatures")
    text = "bias: the unrolled gradient's, against N and K; early-stopping: the FID of every checkpoint"
    parser.add_argument("--study", choices=["bias", "early-stopping"], help=text)
    add_run(parser)
    parser.add_json()
    return parser


def main(argv: list[str]) -> None:
    arguments = build_parser().parse(argv)
    at_least(arguments, chains=2, temperatures=1, seed=0, draw=0, fid=4, reference=4, steps=1)
    at_most(
        arguments, chains=10**6, temperatures=10**7, seed=2**62, draw=10**7, fid=10**7, reference=10**9, steps=10**9
    )
    if arguments.compare:
        return compare_runs(arguments)
    if arguments.dir is None:
        raise UserError("give the folder of a run, or --compare DIR DIR ...")
    if arguments.shard is not None and arguments.fid is None:
        raise UserError("--shard divides the work of --fid COUNT; give both")
    read_config(Path(arguments.dir))  # report a folder that is not a run before torch is imported

    from eblvm.engine import evaluation
    from eblvm.engine.evaluation.sample_chunks import Shard
    from eblvm.engine.runs.saved import SavedRun

    options = options_of(arguments)
    run = SavedRun.open(Path(arguments.dir), arguments.data, arguments.device, arguments.step)
    model = arguments.model or run.default_model()
    if arguments.shard is not None:
        evaluation.make_shard(run, model, options, Shard(*arguments.shard))
        print("when all shards are made, the same command without --shard gives the figures")
        return
    studies = {None: evaluate, "bias": bias, "early-stopping": early_stopping}
    write_json(arguments.json, studies[arguments.study](run, arguments.model, options))


def options_of(arguments: argparse.Namespace) -> "EvalOptions":
    from eblvm.engine.evaluation import EvalOptions

    given = {field.name: getattr(arguments, field.name) for field in dataclasses.fields(EvalOptions)}
    return EvalOptions(**given | {"ood": dict(arguments.ood)})


def evaluate(run: "SavedRun", model: str | None, options: "EvalOptions") -> dict[str, object]:
    from eblvm.engine import evaluation
    from eblvm.engine.evaluation.figures import shown

    model = model or run.default_model()
    facts = evaluation.evaluate(run, model, options, say=lambda line: print(line, flush=True))
    print(f"{run.folder}: {model} model, step {facts['step']}, log-likelihood {facts['likelihood']}")
    for section, outcome in facts["sections"].items():
        how = ", ".join(f"{k} {v}" for k, v in outcome["settings"].items() if k not in ("data", "inception_weights"))
        print(f"{section}: {how}" if how else section)
        for name, value in facts["mean"].items():
            if name.partition(" ")[0] in outcome["figures"][0]:
                deviation, each = facts["deviation"][name], of_replicas(facts["replicas"], name)
                own = f"  ({', '.join(shown(x) for x in each)})" if len(each) > 1 else ""
                print(f"  {name:28} {shown(value)}" + (f" +- {deviation:.4f}" if deviation else "") + own)
    if len(facts["replicas"]) > 1:
        print(f"in brackets, in this order: {', '.join(row['replica'] for row in facts['replicas'])}")
    print_next(("report", run.folder), ("export", run.folder))
    return facts


def of_replicas(rows: list[dict[str, Any]], name: str) -> list[Any]:
    """A figure of every replica at the learning rate behind its name, in the order of the replicas."""
    figure, _, rate = name.partition(" ")
    return [row[figure] for row in rows if figure in row and row["replica"].partition(" ")[2] == rate]


def bias(run: "SavedRun", model: str | None, options: "EvalOptions") -> dict[str, object]:
    from eblvm.engine import evaluation

    facts = evaluation.bias_study(run)
    for name in ("bias", "spread"):
        print(f"relative {name} of the gradient".ljust(31) + "".join(f"  N={N:<6}" for N in facts["N"]) + "  Newton")
        for K, row, newton in zip(facts["K"], facts[f"relative_{name}"], facts[f"newton_{name}"], strict=True):
            print(f"{'K=' + str(K):>31}" + "".join(f"  {x:<8.2e}" for x in (*row, newton)))
    print(f"plot: {run.folder / 'gradient_bias.png'}")
    write_json(str(run.folder / "gradient_bias.json"), facts)
    print("give a run the smallest N and K whose bias is small enough for you")
    return facts


def early_stopping(run: "SavedRun", model: str | None, options: "EvalOptions") -> dict[str, object]:
    from eblvm.engine.evaluation.studies.early_stopping import early_stopping

    facts = early_stopping(run, model, options)
    print(f"FID of the {facts['model']} model on {facts['samples']} samples")
    for step, fid in zip(facts["steps"], facts["fid"], strict=True):
        print(f"  step {step:<9} {fid:.3f}" + ("  lowest" if step == facts["best_step"] else ""))
    print(f"plot: {run.folder / 'early_stopping.png'}")
    write_json(str(run.folder / "early_stopping.json"), facts)
    print_next(("eval", run.folder, "--step", facts["best_step"], "--fid", 50_000))
    return facts


def compare_runs(arguments: argparse.Namespace) -> None:
    from eblvm.engine.evaluation.compare import by_replica, compare
    from eblvm.engine.evaluation.figures import shown

    folders = [Path(d) for d in arguments.compare]
    table = compare(folders, arguments.plot)
    runs = list(dict.fromkeys(run for by_run in table.values() for run in by_run))
    rows = [[name, *(_cell(by_run.get(r)) for r in runs)] for name, by_run in table.items()]
    print(tables.markdown(["figure", *runs], rows))
    if replicas := by_replica(folders):
        names = list(dict.fromkeys(name for row in replicas for name in row))
        cells = [[x if isinstance(x := row.get(n, ""), str) else shown(x) for n in names] for row in replicas]
        print("\n" + tables.markdown(names, cells) + "\n")
    print(f"plot: {arguments.plot}")
    write_json(arguments.json, table)
    print_next(("report", *arguments.compare))


def _cell(figure: tuple[float | str, float] | None) -> str:
    if figure is None:
        return ""
    value, deviation = figure
    return value if isinstance(value, str) else f"{value:.4g}" + (f" ± {deviation:.2g}" if deviation else "")
