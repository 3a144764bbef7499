"""The `eblvm` command: one file per subcommand, found by name and imported only when it is called.

Another package adds commands by an entry point of the group `eblvm.commands`: a table of `Command`s like COMMANDS.
"""

import importlib
import io
import os
import sys
from functools import cache
from typing import NamedTuple

from eblvm.engine.cli.lazy_import import lazy
from eblvm.engine.errors import DivergedError, LostPeerError, UserError, printable, unknown
from eblvm.engine.system import CLOSED_PIPE

LAZY = ("torch", "numpy", "eblvm.kernels", "eblvm.engine.autodiff", "eblvm.engine.nets")


class Command(NamedTuple):
    group: str  # of the help
    help: str
    module: str  # whose `main(argv)` runs it


COMMANDS = {
    "train": Command("train", "train a recipe, or continue a run", "eblvm.engine.cli.train"),
    "sweep": Command("train", "several seeds and learning rates at once, one row each", "eblvm.engine.cli.sweep"),
    "plan": Command("train", "memory, FLOPs and traffic of a step; nothing is allocated", "eblvm.engine.cli.plan"),
    "runs": Command("look", "list runs; show, compare or clean them", "eblvm.engine.cli.runs"),
    "sample": Command("look", "draw samples of a run", "eblvm.engine.cli.sample"),
    "eval": Command("look", "every figure that a run can be judged by", "eblvm.engine.cli.eval"),
    "report": Command("look", "runs in one HTML page that needs no network", "eblvm.engine.cli.report"),
    "serve": Command("look", "live pages of runs, on this machine only", "eblvm.engine.cli.serve"),
    "export": Command("share", "a model as a folder to give away, with a model card", "eblvm.engine.cli.export"),
    "fid": Command("look", "the Frechet Inception distance of two sets of images", "eblvm.engine.cli.fid"),
    "data": Command("data", "prepare pictures for training, or say what a data set is", "eblvm.engine.cli.data"),
    "demo": Command("start", "train a small model in about a minute, with a picture", "eblvm.engine.cli.demo"),
    "doctor": Command("start", "what is installed, which backend serves each kernel", "eblvm.engine.cli.doctor"),
}
GROUPS = {
    "start": "Start here",
    "train": "Train",
    "look": "Look at runs",
    "share": "Share",
    "data": "Data",
    "measure": "Measure",
}


@cache
def commands() -> dict[str, Command]:
    """Those of the engine, and those that other packages add."""
    from importlib.metadata import entry_points  # slow to import

    found = dict(COMMANDS)
    for entry in entry_points(group="eblvm.commands"):
        found |= entry.load()
    return found


def overview() -> str:
    found = commands()
    lines = ["usage: eblvm COMMAND ...", "", "Training engine for energy-based latent variable models."]
    for group, title in GROUPS.items():
        members = [(name, c.help) for name, c in found.items() if c.group == group]
        if members:
            lines += ["", f"{title}:", *(f"  {name:<9} {text}" for name, text in members)]
    return "\n".join([*lines, "", "'eblvm COMMAND --help' says more; 'eblvm --version' which version this is."])


def run(argv: list[str]) -> None:
    if any("\0" in text for text in argv):  # no shell can give one, a program can
        raise UserError("an argument holds a NUL character, which no path or option can; remove it")
    if not argv or argv[0] in ("-h", "--help"):
        print(overview())
        return
    if argv[0] == "--version":
        from importlib.metadata import version

        print(f"eblvm {version('eblvm')}")
        return
    command = COMMANDS.get(argv[0]) or commands().get(argv[0])
    if command is None:
        raise unknown("command", argv[0], list(commands()))
    importlib.import_module(command.module).main(argv[1:])


def main(argv: list[str] | None = None) -> int:
    """Run a command: 0 done, 1 a gate failed, 2 a mistake in what was given, 3 the run diverged, 4 another process of
    the run was lost, 130 interrupted, 141 the reader of the output has gone."""
    for name in LAZY:
        lazy(name)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # names of files that are not UTF-8 are shown, not refused
            stream.reconfigure(errors="backslashreplace")
    try:
        run(sys.argv[1:] if argv is None else argv)
        sys.stdout.flush()  # here, where a closed pipe is seen
        return 0
    except (UserError, DivergedError) as error:
        if speaks():
            print(f"eblvm: {printable(error)}", file=sys.stderr)
        return error.exit_code
    except LostPeerError as error:
        print(f"eblvm: {printable(error)}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print("eblvm: interrupted; what was saved before is kept", file=sys.stderr)
        return 130
    except BrokenPipeError:  # whoever read our output has enough, as in 'eblvm doctor | head'
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # what is left in the buffer has nowhere to go
        return CLOSED_PIPE
    except OSError as error:
        what = f"{error.filename}: {error.strerror}" if error.filename else f"cannot read or write ({error.strerror})"
        print(f"eblvm: {what}; give a path that can be read and written", file=sys.stderr)
        return UserError.exit_code


def speaks() -> bool:
    """Is this the process that says what went wrong? Of several processes of torchrun only the first."""
    if "eblvm.engine.training.distributed" not in sys.modules:
        return True
    from eblvm.engine.training.distributed import is_first

    return is_first()
