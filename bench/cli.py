"""The `bench` and `profile` subcommands of `eblvm`."""

import argparse
import sys
from dataclasses import fields
from pathlib import Path
from typing import Any

from eblvm.engine.errors import UserError, unknown


def add_commands(commands: Any) -> None:
    """Add `bench` and `profile` to the subparsers of `eblvm`."""
    from eblvm.bench.tools.registry import SUITES

    bench = commands.add_parser(
        "bench",
        help="ratios of speed and memory against a plainly written research procedure",
        description="SUITE: "
        + ", ".join(SUITES)
        + ". 'compare BASE' measures this working tree against another commit; "
        "'gates' compares deterministic figures with the recorded ones. Exit code 1: a gate has failed.",
    )
    bench.add_argument(
        "suite", metavar="SUITE", nargs="?", default="grbm", help="suite, 'compare' or 'gates' (default grbm)"
    )
    bench.add_argument("base", metavar="BASE", nargs="?", help="with 'compare': the commit to compare with")
    bench.add_argument("--json", type=Path, metavar="FILE", help="write the record here; a folder names it itself")
    bench.add_argument("--data", type=Path, metavar="PATH", help="with 'data': the folder of CelebA's pictures")
    bench.add_argument("--rounds", type=int, help="readings of every contestant (default 15; compare: 7)")
    bench.add_argument("--device", default="cpu", help="cpu or cuda")
    bench.add_argument("--compile", action="store_true", help="compile the engine's step (minutes; no memory figures)")
    bench.add_argument("--suite", dest="compared", metavar="SUITE", default="gates", help="with 'compare': its cases")
    bench.add_argument("--update", action="store_true", help="with 'gates': record the present figures")
    bench.set_defaults(run=command_bench)

    from eblvm.engine.cli import add_config_options
    from eblvm.engine.recipes import RECIPES

    profile = commands.add_parser(
        "profile", help="time and memory of a training step over N and K", conflict_handler="resolve"
    )
    profile.add_argument("recipe", metavar="RECIPE", help=", ".join(RECIPES))
    add_config_options(profile)
    profile.add_argument("--N", type=integers, default=(0, 1, 5, 10), metavar="N,N,...", help="unrolled steps")
    profile.add_argument("--K", type=integers, default=(1, 2, 5, 10), metavar="K,K,...", help="real lower steps")
    profile.add_argument("--rounds", type=int, default=9, help="readings of every point")
    profile.add_argument("--json", type=Path, metavar="FILE", help="write the record here; a folder names it itself")
    profile.add_argument("--plot", type=Path, metavar="FILE", help="plot (default profile-RECIPE.png)")
    profile.set_defaults(run=command_profile)


def integers(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(x) for x in text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"got {text!r}, expected integers with commas between, such as 0,1,5,10"
        ) from None


def command_bench(arguments: argparse.Namespace) -> None:
    from eblvm.bench.tools import registry

    suite = arguments.suite
    modes = (*registry.SUITES, "compare", "gates")
    if suite not in modes:
        raise unknown("suite", suite, list(modes))
    if (arguments.base is None) == (suite == "compare"):
        if suite == "compare":
            raise UserError("'eblvm bench compare' needs a commit to compare with, such as 'eblvm bench compare main'")
        raise UserError(
            f"got {arguments.base!r} after suite {suite!r}, expected one suite; only 'compare' takes a BASE"
        )
    if arguments.rounds is not None and arguments.rounds < 1:
        raise UserError(f"got rounds={arguments.rounds}, expected 1 or more")
    if suite == "compare" and (arguments.json or arguments.compile or arguments.device != "cpu" or arguments.update):
        raise UserError("'eblvm bench compare' takes --suite and --rounds only; its figures are the table it prints")
    {"compare": bench_compare, "gates": bench_gates}.get(suite, bench_suite)(arguments)


def bench_suite(arguments: argparse.Namespace) -> None:
    from eblvm.bench.suites import bidvl, data, deep, ratios, vages
    from eblvm.bench.tools import record
    from eblvm.bench.tools.agreement import AgreementError

    if arguments.data is not None and arguments.suite != "data":
        raise UserError(f"suite {arguments.suite!r} needs no data; --data is for 'eblvm bench data'")
    networks = {"deep": deep, "vages": vages, "bidvl": bidvl}.get(arguments.suite)
    if (networks or arguments.suite == "data") and (arguments.compile or arguments.device != "cpu"):
        raise UserError(
            f"'eblvm bench {arguments.suite}' times eager steps on the CPU; leave --compile and --device out"
        )
    try:
        if networks:
            result = networks.run(arguments.rounds or 5)
        elif arguments.suite == "data":
            result = data.run(arguments.rounds or 20, arguments.data)
        else:
            result = ratios.run(arguments.suite, arguments.rounds or 15, arguments.device, arguments.compile)
    except AgreementError as error:
        fail([str(error)])
    print((networks or {"data": data}.get(arguments.suite, ratios)).shown(result))
    if arguments.json:
        print(f"wrote {record.write(result, arguments.json)}")
    if arguments.suite == "data" and (missed := data.problems(result)):
        fail(missed)


def bench_gates(arguments: argparse.Namespace) -> None:
    from eblvm.bench.tools import gates

    problems = gates.run(arguments.update, arguments.json or gates.PATH)
    if problems:
        fail(problems)
    print(
        "gates recorded"
        if arguments.update
        else "gates passed: bytes, FLOPs and operator calls within 2 % of the record"
    )


def bench_compare(arguments: argparse.Namespace) -> None:
    from eblvm.bench.tools import compare

    shown, failures = compare.run(arguments.base, arguments.compared, arguments.rounds or 7, Path.cwd())
    print(shown)
    if failures:
        fail(failures)
    print("gates passed: bytes, FLOPs and operator calls within 2 %, time within 25 %")


def fail(problems: list[str]) -> Any:
    for problem in problems:
        print(f"gate failed: {problem}", file=sys.stderr)
    raise SystemExit(1)


def command_profile(arguments: argparse.Namespace) -> None:
    from eblvm.bench.suites import profile
    from eblvm.bench.tools import record
    from eblvm.engine import recipes
    from eblvm.engine.config import Config

    names = [f.name for f in fields(Config) if f.name not in ("recipe", "N", "K")]
    given = {name: getattr(arguments, name) for name in names if getattr(arguments, name) is not None}
    config = recipes.recipe(arguments.recipe).replaced(**given)
    result = profile.run(config, arguments.N, arguments.K, arguments.rounds)
    print(profile.shown(result))
    if arguments.json:
        print(f"wrote {record.write(result, arguments.json)}")
    path = arguments.plot or Path(f"profile-{config.recipe}.png")
    profile.plot(result, path)
    print(f"wrote {path}")
