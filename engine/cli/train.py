"""`eblvm train`: train a recipe, continue or extend a run, or start from another run's weights."""

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from eblvm.engine.cli.configuration import add_run_options, run_of
from eblvm.engine.cli.parser import Parser, print_next
from eblvm.engine.config import Config
from eblvm.engine.errors import WithoutGraphsError
from eblvm.engine.options import flag
from eblvm.engine.progress import is_first
from eblvm.engine.runs.folder import read_config
from eblvm.engine.runs.summary import summarise

if TYPE_CHECKING:
    from eblvm.engine.runs.saved import SavedRun

USAGE = "eblvm train RECIPE [options]; 'eblvm train RECIPE --method M --help' shows its options"
EXAMPLES = (
    "eblvm train checkerboard --method bidsm --N 5 --K 5 --out runs/board   # again: continues it",
    "eblvm train --resume runs/board --steps 200000                         # longer",
    "eblvm train --init runs/board --lr 1e-4 --out runs/board-slow          # a fork of it",
)


def main(argv: list[str]) -> None:
    text = "Train a recipe, continue the run in --out, or start from another run's weights."
    parser = Parser("train", text, EXAMPLES, add_help=False, usage=USAGE)
    add_run_options(parser, places=True)
    parser.add_argument("--resume", metavar="RUN", help="continue this run; with --steps M for longer")
    arguments = parser.parse(argv)
    config, out, init = run_of(parser, arguments)
    if arguments.dry_run:
        show(config)
        return

    if config.running.on_cuda:
        config = for_gpu(config, out, argv, arguments.resume or arguments.config)

    from eblvm.engine.training.loop import train

    try:
        complete = train(config, out, init=init, extend=arguments.resume is not None, preview=preview)
    except WithoutGraphsError as error:
        start_again(error)
    else:
        if complete:
            finish(out)


def start_again(error: WithoutGraphsError) -> None:
    """Replace this process, whose GPU or collectives are lost, by one that runs the same command without graphs."""
    from eblvm.engine.training.distributed import AGAIN

    if is_first():
        print(f"--graphs: {error.why}, and this process cannot go on; starting again without", flush=True)
    os.environ[AGAIN] = "1"
    os.execv(sys.executable, [*sys.orig_argv, "--no-graphs"])


def for_gpu(config: Config, out: Path, argv: list[str], recorded: str | None) -> Config:
    """The rule of training/gpu_defaults.py, said once; a configuration from a file or a run is taken as it is."""
    from eblvm.engine.machine import own_device
    from eblvm.engine.training.gpu_defaults import CHOSEN, gpu_defaults, sentence

    device = own_device(config.running.device)
    if not recorded:
        given = [n for n in CHOSEN if any(a.split("=")[0] in (flag(n), flag("no_" + n)) for a in argv)]
        before = read_config(out) if (out / "config.json").is_file() else None
        config = gpu_defaults(config, given, before, torch.cuda.get_device_capability(device))
    if is_first():
        print(sentence(config, torch.cuda.get_device_name(device)))
    return config


def preview(run: "SavedRun", thorough: bool) -> dict[str, Path]:
    """`previews.preview`, imported when the first picture is due: it brings matplotlib and all of evaluation."""
    from eblvm.engine.previews import preview

    return preview(run, thorough)


def finish(out: Path) -> None:
    """Print the result of a complete run, and the commands to go on with."""
    if not is_first():
        return
    run = summarise(out)
    best = "" if run.best is None else f"; best validation {run.best[0]:.6g} at step {run.best[1]}"
    seconds = run.last.get("seconds")
    took = f" in {seconds:.0f} s" if isinstance(seconds, float) else ""
    print(f"{out}: {run.step} steps{took}{best}")
    longer = ("train", "--resume", out, "--steps", 2 * run.step)
    print_next(("eval", out), ("report", out), ("sample", out), longer)


def show(config: Config) -> None:
    for name, value in (("recipe", config.recipe), *((leaf.name, leaf.value) for leaf in config.leaves())):
        print(f"{name:18} {value}")
