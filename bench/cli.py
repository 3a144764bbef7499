"""The `bench` and `profile` commands."""

import argparse
import sys
from pathlib import Path
from typing import Any

from eblvm.engine.cli.parser import Parser
from eblvm.engine.errors import UserError, unknown

SUITES = ("grbm", "toy", "deep", "vages", "bidvl", "data", "growth", "kernels")
CONTESTED = tuple(suite for suite in SUITES if suite != "growth")  # growth is the engine beside theory
MODES = ("compare", "gates", "history")
EXAMPLES = (
    "eblvm bench grbm --rounds 31 --json bench/records",
    "eblvm bench compare main --minutes 5",
    "eblvm bench history --html history.html",
)
COUNTING = ("auto", "callgrind", "no")


def main(argv: list[str]) -> None:
    parser = Parser(
        "bench",
        "Ratios of speed and memory against a plainly written research procedure.\nSUITE: "
        + ", ".join(SUITES)
        + ", or 'all' of them.\n"
        "'compare BASE' measures this working tree against another commit; 'gates' compares deterministic\n"
        "figures with the recorded ones; 'history' shows records over commits. Exit code 1: a gate failed.",
        EXAMPLES,
    )
    parser.add_argument(
        "suite",
        metavar="SUITE",
        nargs="?",
        default="grbm",
        help="suite, 'all', 'compare', 'gates' or 'history' (default grbm)",
    )
    parser.add_argument("--contestants", action="store_true", help="measure other libraries beside the engine instead")
    parser.add_argument("base", metavar="BASE", nargs="?", help="with 'compare': the commit to compare with")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the record here; a folder names it itself")
    parser.add_argument("--data", type=Path, metavar="PATH", help="with 'data': the folder of CelebA's pictures")
    parser.add_argument("--rounds", type=int, help="readings of every contestant (default 15)")
    parser.add_argument("--device", default="cpu", help="cpu or cuda (cuda:1, ...)")
    parser.add_argument("--compile", action="store_true", help="compile the engine's step (minutes; no memory figures)")
    parser.add_argument("--suite", dest="compared", metavar="SUITE", default="gates", help="with 'compare': its cases")
    parser.add_argument("--minutes", type=float, help="with 'compare': its time, building included (default 10)")
    parser.add_argument("--only", metavar="TEXT,..", help="with 'compare': the cases whose name contains one")
    parser.add_argument(
        "--instructions",
        metavar="HOW",
        help="with 'compare': auto (the processor's counter, where there is one), callgrind (valgrind; minutes) or no",
    )
    parser.add_argument("--html", type=Path, metavar="FILE", help="with 'history': a page with a chart per row")
    parser.add_argument(
        "--action", type=Path, metavar="FILE", help="with 'history': the newest figures for github-action-benchmark"
    )
    parser.add_argument("--update", action="store_true", help="with 'gates': record the present figures")
    command_bench(parser.parse(argv))


def command_bench(arguments: argparse.Namespace) -> None:
    suite = arguments.suite
    modes = (*SUITES, "all", *MODES)
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
    for mode, names in {"compare": ("minutes", "only", "instructions"), "history": ("html", "action")}.items():
        if suite != mode and (given := [name for name in names if getattr(arguments, name) is not None]):
            raise UserError(f"--{given[0]} is for 'eblvm bench {mode}'; remove it")
    if suite in ("compare", "history") and (arguments.compile or arguments.device != "cpu" or arguments.update):
        raise UserError(f"'eblvm bench {suite}' knows no --compile, --device or --update; remove it")
    if arguments.data is not None and suite not in ("data", "all"):
        raise UserError(f"suite {suite!r} needs no data; --data is for 'eblvm bench data'")
    if arguments.contestants and (suite in (*MODES, "growth") or arguments.compile or arguments.device != "cpu"):
        raise UserError("--contestants measures a suite, or 'all', on the CPU; remove --compile and --device")
    if suite == "all" and arguments.json and not arguments.json.is_dir():
        raise UserError(f"'eblvm bench all' writes a record per suite, got --json {arguments.json}; give a folder")
    once = bench_contest if arguments.contestants else bench_suite
    modes_of = {"compare": bench_compare, "gates": bench_gates, "history": bench_history}
    for one in (suite,) if suite != "all" else CONTESTED if arguments.contestants else SUITES:
        chosen = argparse.Namespace(**vars(arguments) | {"suite": one})
        modes_of.get(suite, once)(chosen)


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
    from eblvm.bench.suites import bidvl, data, deep, growth, ratios, vages
    from eblvm.bench.tools import record
    from eblvm.bench.tools.agreement import AgreementError
    from eblvm.bench.tools.device import chosen

    networks = {"deep": deep, "vages": vages, "bidvl": bidvl}.get(arguments.suite)
    if networks and arguments.compile:
        raise UserError(f"'eblvm bench {arguments.suite}' times eager steps; remove --compile")
    if arguments.suite in ("data", "growth") and (arguments.compile or arguments.device != "cpu"):
        raise UserError(f"'eblvm bench {arguments.suite}' measures on the CPU; remove --compile and --device")
    device = chosen(arguments.device)
    try:
        if networks:
            result = networks.run(arguments.rounds or 5, device=device)
        elif arguments.suite == "growth":
            result = growth.run(arguments.rounds or 21)
        elif arguments.suite == "data":
            result = data.run(arguments.rounds or 20, arguments.data)
        else:
            result = ratios.run(arguments.suite, arguments.rounds or 15, device, arguments.compile)
    except AgreementError as error:
        fail([str(error)])
    print((networks or {"data": data, "growth": growth}.get(arguments.suite, ratios)).format_table(result))
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
    if arguments.minutes is not None and not 0 < arguments.minutes < float("inf"):
        raise UserError(f"got minutes={arguments.minutes:g}, expected more than 0")
    how = arguments.instructions or COUNTING[0]
    if how not in COUNTING:
        raise unknown("way of counting instructions", how, list(COUNTING))
    print(f"comparing the working tree with {arguments.base}", file=sys.stderr, flush=True)  # before torch is imported

    from eblvm.bench.tools import compare, record

    budget = compare.Budget(arguments.minutes or compare.MINUTES, arguments.rounds)
    measured, failures = compare.run(arguments.base, Path.cwd(), arguments.compared, budget, arguments.only or "", how)
    print(compare.format_table(measured))
    if arguments.json:
        command = f"eblvm bench compare {arguments.base} --suite {arguments.compared}"
        result = compare.as_record(arguments.base, arguments.compared, measured, command)
        print(f"wrote {record.write(result, arguments.json)}")
    if failures:
        fail(failures)
    print("gates passed: bytes, FLOPs, operator calls and instructions within 2 %, no slow-down that repeats")


def bench_history(arguments: argparse.Namespace) -> None:
    from eblvm.bench.tools import action, history, record

    if arguments.html is None and arguments.action is None:
        raise UserError(
            "'eblvm bench history' needs --html FILE, a page, or --action FILE, for github-action-benchmark"
        )
    folder = arguments.json or record.RECORDS
    found = history.load(folder)
    if arguments.html:
        history.write(found, arguments.html)
        print(f"wrote {arguments.html}: {len(found)} records")
    if arguments.action:
        count = action.write(action.of_records(found), arguments.action)
        print(f"wrote {arguments.action}: {count} figures")


def fail(problems: list[str]) -> Any:
    for problem in problems:
        print(f"gate failed: {problem}", file=sys.stderr)
    raise SystemExit(1)
