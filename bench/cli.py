"""The `bench` and `profile` commands."""

import argparse
import sys
from pathlib import Path
from typing import Any

from eblvm.engine.cli.parser import Parser
from eblvm.engine.errors import UserError, unknown

SUITES = ("grbm", "toy", "deep", "vages", "bidvl", "data", "kernels")
EXAMPLES = ("eblvm bench grbm --rounds 31 --json bench/records", "eblvm bench compare main --suite gates")


def main(argv: list[str]) -> None:
    parser = Parser(
        "bench",
        "Ratios of speed and memory against a plainly written research procedure.\nSUITE: "
        + ", ".join(SUITES)
        + ", or 'all' of them.\n"
        "'compare BASE' measures this working tree against another commit; 'gates' compares deterministic figures\n"
        "with the recorded ones. Exit code 1: a gate has failed.",
        EXAMPLES,
    )
    parser.add_argument(
        "suite", metavar="SUITE", nargs="?", default="grbm", help="suite, 'all', 'compare' or 'gates' (default grbm)"
    )
    parser.add_argument("--contestants", action="store_true", help="measure other libraries beside the engine instead")
    parser.add_argument("base", metavar="BASE", nargs="?", help="with 'compare': the commit to compare with")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the record here; a folder names it itself")
    parser.add_argument("--data", type=Path, metavar="PATH", help="with 'data': the folder of CelebA's pictures")
    parser.add_argument("--rounds", type=int, help="readings of every contestant (default 15; compare: 7)")
    parser.add_argument("--device", default="cpu", help="cpu or cuda (cuda:1, ...)")
    parser.add_argument("--compile", action="store_true", help="compile the engine's step (minutes; no memory figures)")
    parser.add_argument("--suite", dest="compared", metavar="SUITE", default="gates", help="with 'compare': its cases")
    parser.add_argument("--update", action="store_true", help="with 'gates': record the present figures")
    command_bench(parser.parse(argv))


def command_bench(arguments: argparse.Namespace) -> None:
    suite = arguments.suite
    modes = (*SUITES, "all", "compare", "gates")
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
    if arguments.data is not None and suite not in ("data", "all"):
        raise UserError(f"suite {suite!r} needs no data; --data is for 'eblvm bench data'")
    if arguments.contestants and (suite in ("compare", "gates") or arguments.compile or arguments.device != "cpu"):
        raise UserError("--contestants measures a suite, or 'all', on the CPU; remove --compile and --device")
    if suite == "all" and arguments.json and not arguments.json.is_dir():
        raise UserError(f"'eblvm bench all' writes a record per suite, got --json {arguments.json}; give a folder")
    once = bench_contest if arguments.contestants else bench_suite
    for one in SUITES if suite == "all" else (suite,):
        chosen = argparse.Namespace(**vars(arguments) | {"suite": one})
        {"compare": bench_compare, "gates": bench_gates}.get(suite, once)(chosen)


def bench_contest(arguments: argparse.Namespace) -> None:
    from eblvm.bench.suites import contest
    from eblvm.bench.tools import record
    from eblvm.bench.tools.agreement import AgreementError

    try:
        result = contest.run(arguments.suite, arguments.rounds or 5, arguments.data)
    except AgreementError as error:
        fail([str(error)])
    print(contest.format_table(result))
    if arguments.json:
        print(f"wrote {record.write(result, arguments.json)}")


def bench_suite(arguments: argparse.Namespace) -> None:
    from eblvm.bench.suites import bidvl, data, deep, ratios, vages
    from eblvm.bench.tools import record
    from eblvm.bench.tools.agreement import AgreementError
    from eblvm.bench.tools.device import chosen

    networks = {"deep": deep, "vages": vages, "bidvl": bidvl}.get(arguments.suite)
    if networks and arguments.compile:
        raise UserError(f"'eblvm bench {arguments.suite}' times eager steps; remove --compile")
    if arguments.suite == "data" and (arguments.compile or arguments.device != "cpu"):
        raise UserError("'eblvm bench data' times the input on the CPU; remove --compile and --device")
    device = chosen(arguments.device)
    try:
        if networks:
            result = networks.run(arguments.rounds or 5, device=device)
        elif arguments.suite == "data":
            result = data.run(arguments.rounds or 20, arguments.data)
        else:
            result = ratios.run(arguments.suite, arguments.rounds or 15, device, arguments.compile)
    except AgreementError as error:
        fail([str(error)])
    print((networks or {"data": data}.get(arguments.suite, ratios)).format_table(result))
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
