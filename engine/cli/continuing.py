"""Where a run starts: anew, from the run in a folder (--resume), or from another run's weights (--init)."""

import argparse
from dataclasses import replace
from pathlib import Path

from eblvm.engine import recipes
from eblvm.engine.cli.configuration import configuration
from eblvm.engine.cli.parser import Parser
from eblvm.engine.config import Config
from eblvm.engine.errors import UserError
from eblvm.engine.optim.options import Cosine
from eblvm.engine.training.parent import Parent
from eblvm.engine.training.run_folder import read_config


def add_places(parser: Parser) -> None:
    parser.add_argument("--out", metavar="DIR", help="run folder (default runs/RECIPE-METHOD)")
    parser.add_argument("--init", metavar="RUN[@STEP]", help="start from another run's weights; also @best, @ema")
    parser.add_argument("--dry-run", action="store_true", help="print the configuration and stop")


def run_of(parser: Parser, arguments: argparse.Namespace) -> tuple[Config, Path, Parent | None]:
    """What to train, where, and from which weights."""
    resume, init = getattr(arguments, "resume", None), arguments.init and Parent.parse(arguments.init)
    if resume is not None:
        if arguments.recipe or arguments.config or arguments.init:
            raise UserError("--resume takes the run's own configuration; remove the recipe, --config and --init")
        if arguments.out not in (None, resume):
            raise UserError(
                f"--resume {resume} continues in that folder; to start a new run from it use --init {resume}"
            )
        before = read_config(Path(resume))
        config = configuration(parser, arguments, start=before)
        check_extension(before, config, resume)
        config.check()
        return config, Path(resume), None
    start = None
    if init and arguments.recipe is None and arguments.config is None:
        start = fork_of(read_config(init.folder))
    config = configuration(parser, arguments, start=start)
    config.check()
    out = Path(arguments.out or f"runs/{config.recipe}-{config.method.kind}{'-fork' if init else ''}")
    if init and out.resolve() == init.folder.resolve():
        raise UserError(f"got --init and --out of the same folder {out}; a fork needs a folder of its own")
    return config, out, init


def check_extension(before: Config, config: Config, folder: str) -> None:
    """A run may become longer; anything else that decides its numbers makes it another run."""
    differences = config.differences(before)
    if differences and not config.longer(before):
        raise UserError(
            f"--resume {folder} continues a run as it was, got {'; '.join(differences)}; to change it start another "
            f"from its weights: --init {folder} --out DIR"
        )
    schedule, steps = config.optimisation.schedule, config.optimisation.steps
    if isinstance(schedule, Cosine) and differences:
        print(
            f"the cosine schedule now ends at step {schedule.horizon or steps}, no longer at "
            f"{before.get('horizon') or before.optimisation.steps}: the learning rate changes where the run goes on"
        )


def fork_of(parent: Config) -> Config:
    """A parent's configuration for flags to change: another method takes the parent's settings, then the recipe's."""
    known = {leaf.name: leaf.value for leaf in parent.leaves()}
    if parent.recipe in recipes.RECIPES:
        model = None if parent.model.kind == "custom" else parent.model.kind
        known = {**recipes.recipe(parent.recipe, model, parent.small, parent.method.kind).presets, **known}
    return replace(parent, presets=known)
