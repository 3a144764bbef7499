"""A run's configuration from the command line: only the options that the chosen method, model and data set read.

All flags are parsed first; recipe, method and model then make the tree, and every flag is passed to it by name. A flag
that the tree does not read is an error that names what does. The help shows the tree's own options.
"""

import argparse
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from eblvm.engine import options, recipes
from eblvm.engine.cli.parser import Parser
from eblvm.engine.config import Config, Running
from eblvm.engine.data.sets import KINDS as DATASETS
from eblvm.engine.errors import UserError
from eblvm.engine.methods import KINDS as METHODS
from eblvm.engine.models import KINDS as MODELS
from eblvm.engine.optim.optimisation import Cosine, Optimisation
from eblvm.engine.options import NONE, Leaf, flag, value_type
from eblvm.engine.runs.folder import read_config
from eblvm.engine.runs.parent import Parent
from eblvm.engine.training.step import Step
from eblvm.engine.values import range_text

GROUPS = ("method", "model", "data", "optimisation", "running")
MACHINE_LIMIT = 2**31 - 1  # a range that ends here or above is that of a machine integer: errors show it, help does not


def add_run_options(parser: Parser, without: tuple[str, ...] = (), places: bool = False) -> None:
    """Add RECIPE and every option of every kind, read as text; `without` are a command's own. With `places` also the
    run's folder and that of its parent."""
    parser.add_argument("recipe", metavar="RECIPE", nargs="?", help=", ".join(recipes.RECIPES))
    parser.add_argument("--help", "-h", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--config", metavar="FILE", help="a saved config.json, or TOML; flags override it")
    parser.add_argument("--small", action="store_true", help="the recipe's variant that trains on a CPU in minutes")
    if places:
        parser.add_argument("--out", metavar="DIR", help="run folder (default runs/RECIPE-METHOD)")
        parser.add_argument("--init", metavar="RUN[@STEP]", help="start from another run's weights; also @best, @ema")
        parser.add_argument("--dry-run", action="store_true", help="print the configuration and stop")
    for name, is_switch in sorted(_every_option().items()):
        if name not in without:
            switch: dict[str, Any] = {"action": argparse.BooleanOptionalAction} if is_switch else {}
            parser.add_argument(flag(name), default=None, help=argparse.SUPPRESS, **switch)


def _every_option() -> dict[str, bool]:
    """Return all names, and whether each is a switch."""
    is_switch = {"method": False, "model": False}
    for node in (*MODELS.values(), *METHODS.values(), *DATASETS.values(), Optimisation(), Step(), Running()):
        for owner, f in options.every_option(node):
            if f.name != "kind":
                is_switch[f.name] = "kinds" not in f.metadata and value_type(type(owner), f.name)[0] is bool
    return is_switch


def configuration(
    parser: Parser, arguments: argparse.Namespace, without: tuple[str, ...] = (), start: Config | None = None
) -> Config:
    """Return the tree that the arguments describe; with --help, print the help of that tree and exit. `start` is the
    configuration that the flags change, instead of a recipe's or a file's."""
    given = {name: getattr(arguments, name) for name in _every_option() if name not in without}
    given = {name: value for name, value in given.items() if value is not None}
    if arguments.recipe is None and arguments.config is None and start is None:
        if arguments.help:
            print(parser.format_help())
            raise SystemExit(0)
        raise UserError(f"give a recipe: {', '.join(recipes.RECIPES)}; see '{parser.prog} --help'")
    config = start or _start(arguments, given)
    slots = {leaf.name for leaf in config.leaves() if leaf.is_slot}
    for name in [n for n in given if n in slots]:
        config = config.replaced(**{name: given[name]})
    leaves = {leaf.name: leaf for leaf in config.leaves()}  # options that the run does not read stay text
    config = config.replaced(
        **{
            name: leaves[name].parsed(value) if name in leaves and isinstance(value, str) else value
            for name, value in given.items()
            if name not in slots
        }
    )
    if arguments.help:
        print(_help(parser, config))
        raise SystemExit(0)
    return config


def _start(arguments: argparse.Namespace, given: dict[str, Any]) -> Config:
    """Return the configuration of the recipe or the file, before the flags."""
    saved = read_file(Path(arguments.config)) if arguments.config else {}
    recipe = arguments.recipe
    if "format" in saved:
        config = Config.from_json(saved)
        if recipe not in (None, config.recipe):
            raise UserError(f"{arguments.config} is for recipe {config.recipe!r}, got {recipe!r}; give one of them")
        return config
    recipe = recipe or saved.pop("recipe", None)
    if recipe is None:
        raise UserError(f'{arguments.config} names no recipe; add recipe = "...", or give one')
    small = arguments.small or bool(saved.pop("small", False))
    kinds = {name: given.pop(name, saved.pop(name, None)) for name in ("method", "model")}
    config = recipes.recipe(recipe, kinds["model"], small, kinds["method"])
    return config.replaced(**saved) if saved else config


def read_file(path: Path) -> dict[str, Any]:
    """Read a table of options from JSON or TOML: a saved tree, or options by name."""
    import tomllib  # slow to import

    try:
        text = path.read_text()
        table = tomllib.loads(text) if path.suffix == ".toml" else json.loads(text)
    except (ValueError, OSError) as error:
        raise UserError(f"cannot read the configuration {path} ({error}); give a JSON or TOML file") from None
    if not isinstance(table, dict):
        raise UserError(f"{path} contains a {type(table).__name__}, expected a table of options")
    return {name: tuple(v) if isinstance(v, list) and "format" not in table else v for name, v in table.items()}


def _help(parser: Parser, config: Config) -> str:
    """Return the command's help with the options of this run, in titled groups."""
    groups = {title: parser.add_argument_group(f"{title} options") for title in GROUPS}
    for leaf in config.leaves():
        if leaf.name in ("dataset", "help"):
            continue
        action = parser._option_string_actions.get(flag(leaf.name))
        if action is None or action.help != argparse.SUPPRESS:
            continue  # the command's own
        parser._remove_action(action)
        owner = getattr(config, leaf.path[0]) if leaf.path[0] in ("method", "model") else leaf.owner
        group, text = groups[leaf.owner.group or owner.group], _described(config, leaf).replace("%", "%%")
        shown = group.add_argument(flag(leaf.name) + "\0", metavar=_metavar(leaf), help=text)
        shown.option_strings = list(action.option_strings)
        shown.nargs = 0 if isinstance(action, argparse.BooleanOptionalAction) else None
    return parser.format_help().replace("\0", "")


def _metavar(leaf: Leaf) -> str:
    if leaf.is_slot or leaf.choices:
        return "NAME"
    kind, many, _ = value_type(type(leaf.owner), leaf.name)
    return "X,X,..." if many else {bool: "", int: "INT", float: "NUMBER"}.get(kind, "TEXT")


def _described(config: Config, leaf: Leaf) -> str:
    """Return help, range or choices, and default of an option."""
    facts = dict(leaf.field.metadata)
    if (facts.get("high") or 0) >= MACHINE_LIMIT:
        facts["high"] = None
    choices = tuple(options.kinds_of(config, leaf)) if leaf.is_slot else leaf.choices
    allowed = ", ".join(map(str, choices)) or ("" if leaf.is_slot else range_text(facts))
    value = leaf.value
    if isinstance(value, tuple):
        value = ",".join(x if isinstance(x, str) else f"{x:g}" for x in value)
    default = NONE if value is None else ("yes" if value else "no") if isinstance(value, bool) else value
    return f"{facts['help']} [{'; '.join(x for x in (allowed, f'default {default}') if x)}]"


def run_of(parser: Parser, arguments: argparse.Namespace) -> tuple[Config, Path, Parent | None]:
    """The configuration, the folder and the parent: a run is new, continued (--resume), or has a parent (--init)."""
    resume, init = getattr(arguments, "resume", None), arguments.init and Parent.parse(arguments.init)
    if resume is not None:
        if arguments.recipe or arguments.config or arguments.init:
            raise UserError("--resume uses the run's own configuration; remove the recipe, --config and --init")
        if arguments.out not in (None, resume):
            instead = f"to start a new run from it use --init {resume}"
            raise UserError(f"--resume {resume} continues in that folder; {instead}")
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
        raise UserError(f"got the same folder {out} for --init and --out; give the fork another --out")
    return config, out, init


def check_extension(before: Config, config: Config, folder: str) -> None:
    """Allow a longer run, and refuse any other change that would change its numbers."""
    differences = config.differences(before)
    if differences and not config.longer(before):
        raise UserError(
            f"--resume {folder} continues a run unchanged, got {'; '.join(differences)}; to change it, start another "
            f"run from its weights: --init {folder} --out DIR"
        )
    schedule, steps = config.optimisation.schedule, config.optimisation.steps
    if isinstance(schedule, Cosine) and differences:
        print(
            f"the cosine schedule now ends at step {schedule.horizon or steps}, no longer at "
            f"{before.get('horizon') or before.optimisation.steps}: the learning rate changes where the run continues"
        )


def fork_of(parent: Config) -> Config:
    """A parent's configuration, for flags to change: another method uses the parent's settings, then the recipe's."""
    known = {leaf.name: leaf.value for leaf in parent.leaves()}
    if parent.recipe in recipes.RECIPES:
        model = None if parent.model.kind == "custom" else parent.model.kind
        known = {**recipes.recipe(parent.recipe, model, parent.small, parent.method.kind).presets, **known}
    return replace(parent, presets=known)
