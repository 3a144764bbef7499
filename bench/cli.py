"""The `bench` command: `eblvm bench SUITE`, and subcommands that compare, check and show what suites record.

A subcommand is a file in `bench/subcommands`, a suite one in `bench/suites`. Each reads its own options only.
"""

import importlib
from typing import NamedTuple

from eblvm.engine.cli import lazy
from eblvm.engine.errors import unknown

# Besides those of the engine's command line: what suites import to measure.
LAZY = ("eblvm.bench.measurements", "eblvm.bench.tools")
DEFAULT = "grbm"
EXAMPLES = (
    "eblvm bench                                        # suite grbm",
    "eblvm bench grbm --rounds 31 --json bench/records",
    "eblvm bench grbm --contestants                     # next to other libraries",
    "eblvm bench compare main --minutes 5",
    "eblvm bench history --html history.html",
)


class Subcommand(NamedTuple):
    usage: str
    help: str


SUBCOMMANDS = {
    "all": Subcommand("all", "the standard suites one after the other (*), or --contestants of each"),
    "compare": Subcommand("compare BASE", "this working tree against another commit"),
    "gates": Subcommand("gates", "deterministic figures against the recorded ones"),
    "pages": Subcommand("pages", "the pages of docs/ that show records, filled in again or checked"),
    "history": Subcommand("history", "every record over commits, as a page or for github-action-benchmark"),
}


def main(argv: list[str]) -> None:
    for module in LAZY:
        lazy(module)
    if argv and argv[0] in ("-h", "--help"):
        print(overview())
        return
    name, rest = (DEFAULT, argv) if not argv or argv[0].startswith("-") else (argv[0], argv[1:])
    if name in SUBCOMMANDS:
        importlib.import_module(f"eblvm.bench.subcommands.{name}").main(rest)
        return

    from eblvm.bench.suites import SUITES

    if name not in SUITES:
        raise unknown("suite", name, [*SUITES, *SUBCOMMANDS])

    from eblvm.bench.subcommands import suite

    suite.main(name, rest)


def overview() -> str:
    from eblvm.bench.suites import GROUPS, SUITES

    lines = ["usage: eblvm bench [SUITE] [options]", "       eblvm bench SUBCOMMAND ...", ""]
    lines += ["Speed, memory and figures of the engine, as records. Exit code 1: a gate failed."]
    lines += ["'eblvm bench SUITE --help' shows a suite's options, with --contestants those of its contest."]
    lines += ["", "Subcommands:"]
    lines += [f"  {subcommand.usage:<20} {subcommand.help}" for subcommand in SUBCOMMANDS.values()]
    for group, title in GROUPS.items():
        lines += ["", f"{title}:"]
        for name, suite in SUITES.items():
            if suite.group == group:
                lines.append(f"  {name + ('*' if suite.standard else ''):<20} {suite.help}")
    return "\n".join([*lines, "", "examples:", *(f"  {line}" for line in EXAMPLES)])
