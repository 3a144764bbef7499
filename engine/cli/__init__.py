"""The `eblvm` command: one file per subcommand, looked up by name and imported only when it is called.

`lazy("torch")` makes `import torch`, in any file, take no time until a name of torch is read. Only the command line
calls it, before anything else, so that help and errors appear at once. For a file to stay quick, annotations are
strings (`from __future__ import annotations`), and no name of a lazy module is read while the file is imported: not by
a decorator, a base class or an alias. `from torch import Tensor` reads one, so annotations say `torch.Tensor`, or the
import stands under TYPE_CHECKING. A submodule of our own lazy packages is lazy too: `from eblvm.kernels import philox`
reads nothing yet.
"""

import importlib
import importlib.util
import io
import os
import signal
import sys
from functools import cache
from pathlib import Path
from threading import RLock
from types import ModuleType
from typing import NamedTuple

from eblvm.engine.errors import DivergedError, LostPeerError, UserError, printable, unknown

LAZY = ("torch", "numpy", "eblvm.kernels", "eblvm.engine.autodiff", "eblvm.engine.nets")
OURS = "eblvm."
WITH = "--with"  # of every command: a file with kinds of the user's own
_lock = RLock()
CLOSED_PIPE = 128 + getattr(signal, "SIGPIPE", 13)  # the exit code of a program whose reader has closed the pipe


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
    "eval": Command("look", "evaluate a run: likelihood, FID, outliers, pictures, ...", "eblvm.engine.cli.eval"),
    "report": Command("look", "runs in one HTML page that needs no network", "eblvm.engine.cli.report"),
    "serve": Command("look", "live pages of runs, on this machine only", "eblvm.engine.cli.serve"),
    "export": Command("share", "write a model and its model card to a folder", "eblvm.engine.cli.export"),
    "fid": Command("look", "the Frechet Inception distance of two sets of images", "eblvm.engine.cli.fid"),
    "data": Command("data", "prepare pictures for training, or describe a data set", "eblvm.engine.cli.data"),
    "demo": Command("start", "train a small model in about a minute, with a picture", "eblvm.engine.cli.demo"),
    "doctor": Command("start", "what is installed, which backend each kernel uses", "eblvm.engine.cli.doctor"),
}
GROUPS = {
    "start": "Start here", "train": "Train", "look": "Look at runs", "share": "Share", "data": "Data",
    "measure": "Measure",
}  # fmt: skip


@cache
def commands() -> dict[str, Command]:
    """The engine's commands, and those that other packages add: entry points to a table like COMMANDS."""
    from importlib.metadata import entry_points  # slow to import

    table = dict(COMMANDS)
    for entry in entry_points(group="eblvm.commands"):
        table |= entry.load()
    return table


def overview() -> str:
    table = commands()
    lines = ["usage: eblvm COMMAND ...", "", "Training engine for energy-based latent variable models."]
    for group, title in GROUPS.items():
        members = [(name, c.help) for name, c in table.items() if c.group == group]
        if members:
            lines += ["", f"{title}:", *(f"  {name:<9} {text}" for name, text in members)]
    last = (
        "'eblvm COMMAND --help' explains a command; 'eblvm --version' prints the version.",
        "'--with FILE.py', with any command, imports kinds of your own: a loss, a model, a data set, a sampler, ...",
    )
    return "\n".join([*lines, "", *last])


def run(argv: list[str]) -> None:
    for name in LAZY:
        lazy(name)
    if any(text == WITH or text.startswith(f"{WITH}=") for text in argv):
        argv = import_own(argv)
    if any("\0" in text for text in argv):  # no shell can pass one, a program can
        raise UserError("an argument contains a NUL character, which no path or option can contain; remove it")
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


def import_own(argv: list[str]) -> list[str]:
    """Import the files of the user's own that `--with FILE.py` names; return the arguments without it."""
    rest, paths, texts = [], [], iter(argv)
    for text in texts:
        if text == WITH:
            paths.append(next(texts, ""))
        elif text.startswith(f"{WITH}="):
            paths.append(text.partition("=")[2])
        else:
            rest.append(text)
    for path in map(Path, paths):
        if path.suffix != ".py" or not path.is_file():
            raise UserError(f"got {WITH} {path}, expected a Python file; {path} does not exist or is none")
        sys.path.insert(0, str(path.resolve().parent))  # it may import files next to it
        try:
            importlib.import_module(path.stem)
        except UserError:
            raise
        except Exception as error:
            raise UserError(f"{path} cannot be imported ({type(error).__name__}: {error}); mend it") from error
    return rest


def main(argv: list[str] | None = None) -> int:
    """Run a command and return its exit code: 0 done, 1 a check or a gate failed, 2 a mistake in the input, 3 the run
    diverged, 4 another process of the run was lost, 130 interrupted, 141 the reader of the output has closed it."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # file names that are not UTF-8 are escaped, not an error
            stream.reconfigure(errors="backslashreplace")
    try:
        run(sys.argv[1:] if argv is None else argv)
        sys.stdout.flush()  # raises here if the pipe is closed
        return 0
    except (UserError, DivergedError, LostPeerError) as error:
        if isinstance(error, LostPeerError) or prints_errors():
            print(f"eblvm: {printable(error)}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print("eblvm: interrupted; what was saved before is kept", file=sys.stderr)
        return 130
    except BrokenPipeError:  # the reader of the output has closed it, as in 'eblvm doctor | head'
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # discards what is left in the buffer
        return CLOSED_PIPE
    except OSError as error:
        what = f"{error.filename}: {error.strerror}" if error.filename else f"cannot read or write ({error.strerror})"
        print(f"eblvm: {what}; give a path that can be read and written", file=sys.stderr)
        return UserError.exit_code


def prints_errors() -> bool:
    """Return whether this process prints errors: of several processes of torchrun only the first does."""
    if "eblvm.engine.training.distributed" not in sys.modules:
        return True
    from eblvm.engine.training.distributed import is_first

    return is_first()


class _Lazy(ModuleType):
    """A module that executes itself when one of its names is first read; other threads wait until it is done."""

    def __getattr__(self, name: str) -> object:
        with _lock:
            if self.__dict__.get("_loading"):  # read by its own code: the name is not defined yet
                raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
            if type(self) is _Lazy:
                has_submodules = "__path__" in self.__dict__ and not name.startswith("_")
                if has_submodules and (child := lazy(f"{self.__name__}.{name}")) is not None:
                    return child
                self._load()
        return getattr(self, name)

    def _load(self) -> None:
        spec = self.__spec__
        assert spec is not None
        assert spec.loader is not None
        self.__dict__["_loading"] = True
        try:
            if spec.submodule_search_locations is not None:
                self.__path__ = spec.submodule_search_locations
            spec.loader.exec_module(self)
            self.__class__ = ModuleType  # type: ignore[assignment]
        finally:
            del self.__dict__["_loading"]


def lazy(name: str) -> ModuleType | None:
    """Register the module `name`, to be executed on first use. Return it, or None if there is no such module."""
    if name in sys.modules:
        return sys.modules[name]
    if (spec := importlib.util.find_spec(name)) is None:
        return None
    module = _Lazy(name)
    module.__spec__, module.__file__, module.__package__ = spec, spec.origin, spec.parent
    module.__loader__ = spec.loader
    # The path of another project's package is known after executing it, as in an ordinary import of its submodules.
    if name.startswith(OURS) and spec.submodule_search_locations is not None:
        module.__path__ = spec.submodule_search_locations
    sys.modules[name] = module
    return module
