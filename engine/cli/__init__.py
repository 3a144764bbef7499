"""The `eblvm` command. Each subcommand is a function here; options of `train` come from the fields of `Config`."""

import argparse
import json
import os
import sys
import typing
from dataclasses import Field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from eblvm.engine import recipes
from eblvm.engine.config import Config
from eblvm.engine.errors import DivergedError, UserError, unknown
from eblvm.engine.training.checkpoint import write_atomic
from eblvm.engine.training.distributed import is_first

if TYPE_CHECKING:
    from eblvm.engine.evaluation.chunks import Share


class Parser(argparse.ArgumentParser):
    """Errors as one line with the nearest valid names, exit code 2; options are not abbreviated."""

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **{"allow_abbrev": False, **kwargs})

    def error(self, message: str) -> NoReturn:
        raise UserError(f"{message}; see 'eblvm --help'")


def numbers(text: str) -> tuple[float, ...]:
    return tuple(float(x) for x in text.split(","))


def share(text: str) -> "Share":
    from eblvm.engine.evaluation.chunks import Share

    if text == "torchrun":
        if "RANK" not in os.environ or "WORLD_SIZE" not in os.environ:
            raise argparse.ArgumentTypeError("there is no RANK and WORLD_SIZE of torchrun; give R/W such as 0/4")
        text = f"{os.environ['RANK']}/{os.environ['WORLD_SIZE']}"
    rank, _, of = text.partition("/")
    if not (rank.isdigit() and of.isdigit() and int(rank) < int(of)):
        raise argparse.ArgumentTypeError(f"got {text!r}, expected R/W such as 0/4, 1/4, 2/4 and 3/4")
    return Share(int(rank), int(of))


def named_path(text: str) -> tuple[str, Path]:
    """NAME=PATH, or a path that is its own name."""
    name, equals, path = text.partition("=")
    return (name, Path(path)) if equals else (Path(text).stem, Path(text))


def option_type(f: "Field[Any]") -> Any:
    """The parser of a field's text, by its annotation."""
    kind = typing.get_type_hints(Config)[f.name]
    if typing.get_origin(kind) is tuple:
        return numbers
    arguments = [a for a in typing.get_args(kind) if a is not type(None)]
    return arguments[0] if arguments else kind


def add_config_options(parser: argparse.ArgumentParser) -> None:
    for f in fields(Config):
        if f.name == "recipe":
            continue
        flag = "--" + f.name.replace("_", "-")
        values = ", ".join(f.metadata["choices"])
        help_text = f.metadata["help"] + (f" ({values})" if values else "")
        if option_type(f) is bool:
            parser.add_argument(flag, action=argparse.BooleanOptionalAction, default=None, help=help_text)
        else:
            parser.add_argument(flag, type=option_type(f), default=None, help=help_text, metavar=f.name.upper())


def config_from(arguments: argparse.Namespace) -> Config:
    given = {f.name: getattr(arguments, f.name) for f in fields(Config) if f.name != "recipe"}
    return recipes.recipe(arguments.recipe, arguments.model, bool(arguments.small), arguments.method).replaced(
        **{k: v for k, v in given.items() if v is not None}
    )


def at_least(arguments: argparse.Namespace, **lowest: int) -> None:
    for name, low in lowest.items():
        if getattr(arguments, name) < low:
            raise UserError(f"got --{name} {getattr(arguments, name)}, expected {low} or more")


def write_json(path: str | None, facts: dict[str, Any]) -> None:
    if path is not None:
        write_atomic(Path(path), (json.dumps(facts, indent=2) + "\n").encode())


def command_train(arguments: argparse.Namespace) -> None:
    from eblvm.engine.training.loop import train

    config = config_from(arguments)
    config.validate()
    if arguments.dry_run:
        for f in fields(config):
            print(f"{f.name:18} {getattr(config, f.name)}")
        return
    train(config, Path(arguments.out or f"runs/{config.recipe}-{config.method}"))


def command_eval(arguments: argparse.Namespace) -> None:
    from eblvm.engine import evaluation
    from eblvm.engine.evaluation.studies.early_stopping import early_stopping
    from eblvm.engine.training.run import Run

    at_least(arguments, chains=2, temperatures=1, seed=0)
    lowest = {"draw": 0, "fid": 4, "reference": 4, "steps": 1}
    at_least(arguments, **{name: low for name, low in lowest.items() if getattr(arguments, name) is not None})
    if arguments.compare:
        return command_compare(arguments)
    if arguments.dir is None:
        raise UserError("give the folder of a run, or --compare DIR DIR ...")
    options = evaluation.Options(
        chains=arguments.chains,
        temperatures=arguments.temperatures,
        force_ais=arguments.ais,
        draw=arguments.draw,
        fid=arguments.fid,
        samples=arguments.samples,
        reference=arguments.reference,
        inception=arguments.inception,
        ood=dict(arguments.ood),
        kind=arguments.kind,
        steps=arguments.steps,
        seed=arguments.seed,
        again=arguments.again,
    )
    run = Run.open(Path(arguments.dir), arguments.data, arguments.device, arguments.step)
    if arguments.share is not None:
        if arguments.fid is None:
            raise UserError("--share divides the work of --fid COUNT; give both")
        evaluation.make_share(run, arguments.model or run.default_model(), options, arguments.share)
        print("this share is made; when all are, the same command without --share gives the figures")
        return
    if arguments.study == "early-stopping":
        facts = early_stopping(run, arguments.model, options)
        print(f"FID of the {facts['model']} model on {facts['samples']} samples")
        for step, fid in zip(facts["steps"], facts["fid"], strict=True):
            print(f"  step {step:<9} {fid:.3f}" + ("  lowest" if step == facts["best_step"] else ""))
        print(f"plot: {run.folder / 'early_stopping.png'}")
        write_json(str(run.folder / "early_stopping.json"), facts)
    elif arguments.study == "bias":
        facts = evaluation.bias_study(run)
        print("relative bias of the gradient" + "".join(f"  N={N:<6}" for N in facts["N"]))
        for K, row in zip(facts["K"], facts["relative_bias"], strict=True):
            print(f"{'K=' + str(K):>29}" + "".join(f"  {x:<8.2e}" for x in row))
        print(f"plot: {run.folder / 'gradient_bias.png'}")
        write_json(str(run.folder / "gradient_bias.json"), facts)
    else:
        model = arguments.model or run.default_model()
        facts = evaluation.evaluate(run, model, options)
        print(f"{run.folder}: {model} model, step {facts['step']}, log-likelihood {facts['likelihood']}")
        for part, found in facts["parts"].items():
            how = ", ".join(f"{k} {v}" for k, v in found["settings"].items() if k not in ("data", "inception_weights"))
            print(f"{part}: {how}" if how else part)
            for name in found["figures"][0]:
                deviation = f" +- {facts['deviation'][name]:.4f}" if run.config.replicated else ""
                print(f"  {name:28} {facts['mean'][name]:.4f}{deviation}")
    write_json(arguments.json, facts)


def command_compare(arguments: argparse.Namespace) -> None:
    from eblvm.bench.tools import table
    from eblvm.engine.evaluation.compare import compare

    found = compare([Path(d) for d in arguments.compare], arguments.plot)
    runs = list(dict.fromkeys(run for by_run in found.values() for run in by_run))
    rows = [
        [
            name,
            *(
                f"{by_run[r][0]:.4g}" + (f" ± {by_run[r][1]:.2g}" if by_run[r][1] else "") if r in by_run else ""
                for r in runs
            ),
        ]
        for name, by_run in found.items()
    ]
    print(table.markdown(["figure", *runs], rows))
    print(f"plot: {arguments.plot}")
    write_json(arguments.json, found)


def command_sample(arguments: argparse.Namespace) -> None:
    import torch

    from eblvm.engine.evaluation import plots as pictures
    from eblvm.engine.sampling import run_samples as sampling
    from eblvm.engine.training import distributed
    from eblvm.engine.training.run import Run

    at_least(arguments, count=1, seed=0)
    if arguments.steps is not None:
        at_least(arguments, steps=0)
    with distributed.joined(arguments.device):
        run = Run.open(Path(arguments.dir), arguments.data, arguments.device)
        model = arguments.model or run.default_model()
        v = sampling.sample_over_ranks(run, model, arguments.count, arguments.steps, arguments.seed, arguments.kind)
        if not distributed.is_first():
            return
    name = "samples" if arguments.kind is None else f"samples-{arguments.kind}"
    torch.save(v, run.folder / f"{name}.pt")
    columns = -(-arguments.count // sampling.CONDITIONS) if arguments.kind == "conditional" else 10
    pictures.samples(v, run.dataset.image_shape, run.folder / f"{name}.png", columns)
    print(f"{len(v)} samples: {run.folder / name}.pt, {run.folder / name}.png")


def command_report(arguments: argparse.Namespace) -> None:
    from eblvm.engine.evaluation.report import report

    facts = report(Path(arguments.dir))
    print(f"{arguments.dir}: {facts['recipe']} {facts['method']}, step {facts['step']} of {facts['steps']}")
    for name, value in {**facts["last"], **(facts["eval"] or {})}.items():
        print(f"  {name:24} {value:.6g}")
    print(f"curves: {Path(arguments.dir) / 'curves.png'}")
    write_json(arguments.json, facts)


def command_plan(arguments: argparse.Namespace) -> None:
    from eblvm.engine.planning import plan

    at_least(arguments, gpus=1)
    memory = None if arguments.memory is None else plan.parse_bytes(arguments.memory)
    Ns = arguments.N
    arguments.N = None
    config = config_from(arguments)
    config = config.replaced(device="cpu", checkpoint=arguments.checkpoint or "auto")
    config.validate()
    facts = plan.plan(config, Ns or (config.N,), arguments.gpus, memory)
    print(plan.shown(facts))
    write_json(arguments.json, facts)
    if arguments.plot is not None:
        plan.plot(facts, Path(arguments.plot))
        print(f"plot: {arguments.plot}")


def command_doctor(arguments: argparse.Namespace) -> None:
    from eblvm.engine.cli import doctor

    facts = doctor.report(arguments.kernels)
    doctor.show(facts)
    write_json(arguments.json, facts)


def command_demo(arguments: argparse.Namespace) -> None:
    from eblvm.engine.cli.demo import demo

    demo(Path(arguments.out))


def build_parser() -> Parser:
    from eblvm.bench.cli import add_commands as add_bench_commands  # it takes `add_config_options` from here
    from eblvm.bench.cli import integers
    from eblvm.engine.cli.data import add_commands as add_data_commands

    parser = Parser(prog="eblvm", description="Training engine for energy-based latent variable models.")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", parser_class=Parser)

    train = commands.add_parser("train", help="train a recipe, or continue a run")
    train.add_argument("recipe", metavar="RECIPE", help=", ".join(recipes.RECIPES))
    train.add_argument("--out", help="run folder (default runs/RECIPE-METHOD)")
    train.add_argument("--dry-run", action="store_true", help="print the configuration and stop")
    add_config_options(train)
    train.set_defaults(run=command_train)

    evaluate = commands.add_parser("eval", help="every figure that a run can be judged by")
    evaluate.add_argument("dir", metavar="DIR", nargs="?", help="run folder")
    evaluate.add_argument("--compare", nargs="+", metavar="DIR", help="a table and a plot of runs that were evaluated")
    evaluate.add_argument("--plot", type=Path, default=Path("compare.png"), help="of --compare (compare.png)")
    evaluate.add_argument("--fid", type=int, metavar="COUNT", help="FID and KID of COUNT samples, kept in DIR/drawn")
    evaluate.add_argument("--samples", type=Path, metavar="PATH", help="samples from a folder, .npz or .pt, not drawn")
    evaluate.add_argument("--reference", type=int, metavar="COUNT", help="training images of the FID (all of them)")
    evaluate.add_argument("--inception", type=Path, metavar="FILE", help="Inception weights, if not the installed ones")
    evaluate.add_argument(
        "--share", type=share, metavar="R/W", help="every W-th piece of --fid, from the R-th; or torchrun"
    )
    evaluate.add_argument(
        "--ood",
        type=named_path,
        action="append",
        default=[],
        metavar="[NAME=]PATH",
        help="other images that log p~(v) is to tell from the test set; may be given again",
    )
    evaluate.add_argument("--draw", type=int, metavar="COUNT", help="samples for pictures and nearest neighbours")
    evaluate.add_argument("--steps", type=int, help="of the sampler, as in 'eblvm sample'")
    evaluate.add_argument("--kind", help="of sample of a deep model, as in 'eblvm sample'")
    evaluate.add_argument("--seed", type=int, default=0, help="of the samples")
    evaluate.add_argument("--step", type=int, help="evaluate the checkpoint of this step, not the newest")
    evaluate.add_argument("--again", action="store_true", help="compute what eval.json already holds")
    evaluate.add_argument("--ais", action="store_true", help="estimate log Z by AIS even where it is exact")
    evaluate.add_argument("--chains", type=int, default=2000, help="AIS chains")
    evaluate.add_argument("--temperatures", type=int, default=2000, help="AIS temperatures")
    evaluate.add_argument(
        "--study",
        choices=["bias", "early-stopping"],
        help="bias: the unrolled gradient's, against N and K; early-stopping: the FID of every checkpoint",
    )
    evaluate.set_defaults(run=command_eval)

    sample = commands.add_parser("sample", help="draw samples of a run")
    sample.add_argument("--count", type=int, default=100, help="samples")
    sample.add_argument("--steps", type=int, help="Gibbs sweeps (1000), or Langevin steps of a deep model (2700)")
    sample.add_argument("--kind", help="of a deep model: marginal, joint, given-h, conditional, interpolation")
    sample.add_argument("--seed", type=int, default=0)
    sample.set_defaults(run=command_sample)

    sample.add_argument("dir", metavar="DIR", help="run folder")
    for command in (evaluate, sample):
        command.add_argument("--model", help="best (by validation), last or ema")
        command.add_argument("--data", help="where the data set is now, if it moved")
        command.add_argument("--device", default="cpu", help="cpu or cuda")

    report = commands.add_parser("report", help="a run in one table and one picture")
    report.add_argument("dir", metavar="DIR", help="run folder")
    report.set_defaults(run=command_report)

    plan = commands.add_parser(
        "plan", help="memory, FLOPs and traffic of a step, before anything is allocated", conflict_handler="resolve"
    )
    plan.add_argument("recipe", metavar="RECIPE", help=", ".join(recipes.RECIPES))
    add_config_options(plan)
    plan.add_argument("--N", type=integers, metavar="N,N,...", help="unrolled steps")
    plan.add_argument("--gpus", type=int, default=1, help="processes that share the batch")
    plan.add_argument("--memory", help="of each, such as 11GiB: says what fits")
    plan.add_argument("--plot", metavar="FILE", help="plot memory against N")
    plan.set_defaults(run=command_plan)

    doctor = commands.add_parser("doctor", help="what is installed, and which backend serves each kernel")
    doctor.add_argument("--kernels", action="store_true", help="compile every Triton kernel: registers, occupancy")
    doctor.set_defaults(run=command_doctor)

    for command in (evaluate, report, plan, doctor):
        command.add_argument("--json", metavar="FILE", help="write the figures to FILE")

    add_bench_commands(commands)
    add_data_commands(commands)

    demo = commands.add_parser("demo", help="train a small model in about a minute, with a table and a picture")
    demo.add_argument("--out", default="runs/demo", help="run folder")
    demo.set_defaults(run=command_demo)
    return parser


def main(argv: list[str] | None = None) -> int:
    parser = build_parser()
    try:
        arguments, extra = parser.parse_known_args(argv)
        if arguments.command is None:
            parser.print_help()
            return 0
        if extra:
            subparser = parser._subparsers._group_actions[0].choices[arguments.command]  # type: ignore[union-attr,index]
            raise unknown("option", extra[0], sorted(subparser._option_string_actions))
        arguments.run(arguments)
        return 0
    except (UserError, DivergedError) as error:
        if is_first():
            print(f"eblvm: {error}", file=sys.stderr)
        return error.exit_code
    except OSError as error:
        print(f"eblvm: {error.filename}: {error.strerror}; give a path that can be read and written", file=sys.stderr)
        return UserError.exit_code


if __name__ == "__main__":
    sys.exit(main())
