"""The `profile` command."""

import argparse
from pathlib import Path
from typing import Any

from eblvm.bench.subcommands import JSON_HELP
from eblvm.engine.cli.configuration import add_run_options, configuration
from eblvm.engine.cli.parser import Parser, integers
from eblvm.engine.config import Config
from eblvm.engine.errors import UserError
from eblvm.engine.options import flag

AXES = {
    "N": "unrolled steps", "K": "real lower steps", "L": "samples of h of VaGES", "C": "Langevin steps of VaGES"
}  # fmt: skip
SERIES = {
    "best_response": "unroll and newton, to compare them (default both, where the method has them)",
    "network": "published and lean networks",
    "checkpoint": "ways of activation checkpointing",
    "precision": "fp32, bf16, ...",
}
OWN = (*AXES, *SERIES, "batch")
EXAMPLES = (
    "eblvm profile freyface --N 0,1,5,10 --K 1,2,5,10",
    "eblvm profile cifar10 --small --checkpoint none,blocks --precision fp32,bf16 --N 0,5 --K 5",
    "eblvm profile celeba64 --small --method vages-mdsm --L 2,10 --json bench/records",
)


def names(text: str) -> tuple[str, ...]:
    return tuple(text.split(","))


def parsed(argv: list[str]) -> tuple[Config, argparse.Namespace]:
    """The configuration of a command line, and its own arguments."""
    description = "Time, memory and FLOPs of a step over N and K (VaGES: L, K, C), as table, record and plot."
    usage = "eblvm profile RECIPE [options of train] [options]"
    parser = Parser("profile", description, EXAMPLES, add_help=False, usage=usage)
    add_run_options(parser, OWN)
    for name, text in AXES.items():
        parser.add_argument(flag(name), type=integers, metavar="N,N,...", help=f"{text} to measure")
    for name, text in SERIES.items():
        parser.add_argument(flag(name), type=names, metavar="NAME,...", help=text)
    parser.add_argument("--batch", type=positive, help="samples per step (default: the recipe's, or what fits)")
    parser.add_argument("--rounds", type=int, help="readings of every point (default 9, for long steps 3)")
    parser.add_argument("--json", type=Path, metavar="FILE", help=JSON_HELP)
    parser.add_argument("--plot", type=Path, metavar="FILE", help=".png, .pdf or .svg (default profile-RECIPE.png)")
    parser.add_argument("--trace", type=Path, metavar="FILE", help="write a Chrome trace of a few steps, and stop")
    arguments = parser.parse(argv)
    return configuration(parser, arguments, OWN), arguments


def axes_and_series(arguments: argparse.Namespace) -> dict[str, tuple[Any, ...]]:
    return {name: getattr(arguments, name) for name in (*AXES, *SERIES) if getattr(arguments, name) is not None}


def main(argv: list[str]) -> None:
    config, arguments = parsed(argv)
    if config.running.on_cuda:
        from eblvm.bench.tools.device import chosen

        config = config.replaced(device=chosen(config["device"]))
    if arguments.trace is not None:
        return write_trace(config, arguments)

    from eblvm.bench.profiling import profile
    from eblvm.bench.profiling.plot import plot
    from eblvm.bench.tools import record

    record.commit()  # of the code that is loaded: the working tree may go on while it measures
    result = profile.run(config, axes_and_series(arguments), arguments.rounds, arguments.batch)
    print(profile.format_table(result))
    if arguments.json:
        print(f"wrote {record.write(result, arguments.json)}")
    path = arguments.plot or Path(f"profile-{config.recipe}.png")
    if plot(result, path):
        print(f"wrote {path}")


def positive(text: str) -> int:
    try:
        value = int(text)
    except ValueError:
        value = 0
    if value < 1:
        raise argparse.ArgumentTypeError(f"got {text!r}, expected an integer, 1 or more")
    return value


def write_trace(config: Config, arguments: argparse.Namespace) -> None:
    from eblvm.bench.profiling import trace

    for name in (*AXES, *SERIES):
        values = getattr(arguments, name)
        if values is not None:
            if len(values) > 1:
                raise UserError(f"a trace shows one setting, got {flag(name)} {','.join(map(str, values))}; give one")
            config = config.replaced(**{name: values[0]})
    trace.write(
        config.replaced(**({"batch": arguments.batch} if arguments.batch else {})), config.shape, arguments.trace
    )
    print(f"wrote {arguments.trace}: open it in ui.perfetto.dev or chrome://tracing")
