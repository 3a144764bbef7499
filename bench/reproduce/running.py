"""Run an experiment in a folder: a run folder per row, judged as soon as it is trained. A killed one continues.

DIR/LABEL/            the run, its checkpoints, its eval.json and pictures
DIR/reproduce.json    the figures so far, the paper's beside them
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from eblvm.bench.reproduce.experiments import Experiment, Row
from eblvm.engine.cli.configuration import add_run_options, configuration
from eblvm.engine.cli.parser import Parser
from eblvm.engine.config import Config
from eblvm.engine.errors import UserError

SCHEMA = "eblvm-reproduce/1"
PICTURES = ("samples.png", "density.png", "tsne.png", "reconstruction.png", "gradient_bias.png")
Say = Callable[[str], None]


@dataclass(frozen=True)
class Settings:
    """Settings of `eblvm reproduce NAME`; None: as published."""

    out: Path
    data: Path | None = None
    steps: int | None = None
    seeds: int | None = None
    small: bool = False
    device: str = "cpu"
    evaluate: str = ""  # further options of `eblvm eval`


def config_of(command: str) -> Config:
    """Return the configuration of the arguments that follow `eblvm train`."""
    parser = Parser("train", add_help=False)
    add_run_options(parser)
    return configuration(parser, parser.parse(command.split()))


def commands(experiment: Experiment, row: Row, settings: Settings) -> list[str]:
    """Return the commands that train and evaluate this row."""
    folder = settings.out / slug(row.label)
    if not row.train:
        return [f"eblvm reproduce {experiment.name} --out {settings.out}"]
    words = ["eblvm train", row.train]
    if "--replicas" not in row.train and seeds(experiment, settings) > 1:
        words.append(f"--replicas {seeds(experiment, settings)}")
    data = data_for(experiment, row, settings.data, checked=False)
    words += [f"--data {data}"] * (data is not None) + [f"--steps {settings.steps}"] * (settings.steps is not None)
    words += [f"--device {settings.device}"] * (settings.device != "cpu")
    judge = f"eblvm eval {folder} {row.evaluate}".rstrip()
    if row.study in ("bias", "profile"):
        judge = f"eblvm eval {folder} --study bias" if row.study == "bias" else f"eblvm profile {row.train}"
    return [" ".join([*words, f"--out {folder}"]), judge]


def seeds(experiment: Experiment, settings: Settings) -> int:
    return settings.seeds or experiment.seeds


def slug(label: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", label.lower()).strip("-")


def data_for(experiment: Experiment, row: Row, given: Path | None, checked: bool = True) -> Path | None:
    """The data of a row: what was given, or the file of its recipe in the folder that was given."""
    recipe = row.train.split()[0] if row.train else experiment.data.split(".")[0]
    wanted = [name for name in experiment.data.replace(",", "").split() if name.strip("/")[:4] == recipe[:4]]
    if not wanted:
        return None
    name = wanted[0].strip("/")
    if given is None:
        if checked:
            raise UserError(f"{experiment.name} reads {experiment.data}; give --data the file, or the folder of it")
        return Path(name)
    return given / name if (given / name).exists() else given


def run(experiment: Experiment, settings: Settings, say: Say = print) -> dict[str, Any] | None:
    """Train and judge every row; the figures, or None if it was interrupted: the same call continues."""
    from eblvm.engine.durable import write_atomic

    rows = experiment.chosen(settings.small)
    if not rows:
        raise UserError(f"{experiment.name} has no small variant; remove --small")
    for row in rows:  # a mistake is said before the first hour
        data_for(experiment, row, settings.data)
    settings.out.mkdir(parents=True, exist_ok=True)
    found: list[dict[str, Any]] = []
    for row in rows:
        for command in commands(experiment, row, settings):
            say(f"  {command}")
        figures = (study if row.study else trained)(experiment, row, settings, say)
        if figures is None:
            say(
                f"interrupted; 'eblvm reproduce {experiment.name} --out {settings.out}' with the same options continues"
            )
            return None
        found.append({"label": row.label, "command": commands(experiment, row, settings)[0], "paper": row.paper,
                      "beside": row.beside, **figures})  # fmt: skip
        facts = {"schema": SCHEMA, "experiment": experiment.name, **scale(experiment, settings), "rows": found}
        write_atomic(settings.out / "reproduce.json", (json.dumps(facts, indent=1) + "\n").encode())
    if experiment.picture:
        from eblvm.bench.reproduce import pictures

        folders = {row.label: settings.out / slug(row.label) for row in rows}
        facts["curves"] = pictures.checkerboard(folders, settings.out)
        say(f"pictures: {settings.out / 'densities.png'}, {settings.out / 'curves.png'}")
    return facts


def scale(experiment: Experiment, settings: Settings) -> dict[str, Any]:
    """In what it differs from the published one."""
    return {"seeds": seeds(experiment, settings), "small": settings.small, "steps": settings.steps}


def row_config(experiment: Experiment, row: Row, settings: Settings) -> Config:
    config = config_of(row.train)
    changes: dict[str, Any] = {"device": settings.device}
    data = data_for(experiment, row, settings.data)
    if data is not None:
        changes["data"] = str(data)
    if settings.steps is not None:
        changes["steps"] = settings.steps
    many = seeds(experiment, settings)
    if many > 1 or "--replicas" in row.train:
        changes["replicas"] = many
    config = config.replaced(**changes)
    config.check()
    return config


def trained(experiment: Experiment, row: Row, settings: Settings, say: Say) -> dict[str, Any] | None:
    """Train, evaluate and collect one row; None if training was interrupted."""
    from eblvm.engine import evaluation
    from eblvm.engine.cli.eval import build_parser, options_of
    from eblvm.engine.runs.saved import SavedRun
    from eblvm.engine.training.loop import train

    folder = settings.out / slug(row.label)
    if not train(row_config(experiment, row, settings), folder, say):
        return None
    words = [*row.evaluate.split(), *settings.evaluate.split()]
    arguments = build_parser().parse([str(folder), *located(words, settings.data)])
    opened = SavedRun.open(folder, device=settings.device)
    model = arguments.model or opened.default_model()
    facts = evaluation.evaluate(opened, model, options_of(arguments))
    for name in PICTURES:
        if (folder / name).is_file():
            shutil.copyfile(folder / name, settings.out / f"{slug(row.label)}-{name}")
    shown = [name for name in (*experiment.shown, *row.paper) if name in facts["mean"]]
    return {
        "model": model,
        "mean": {name: facts["mean"][name] for name in shown},
        "deviation": {name: facts["deviation"][name] for name in shown},
        "by_seed": [{name: r[name] for name in shown if name in r} for r in facts["replicas"]],
        "steps": opened.config.optimisation.steps,
    }


def located(words: list[str], data: Path | None) -> list[str]:
    """`--ood NAME=FILE` with the file in the folder of the data."""
    if data is None:
        return words
    place = data if data.is_dir() else data.parent
    return [f"{w.split('=')[0]}={place / w.split('=')[1]}" if "=" in w and not w.startswith("-") else w for w in words]


def study(experiment: Experiment, row: Row, settings: Settings, say: Say) -> dict[str, Any] | None:
    from eblvm.bench.reproduce import studies

    return studies.run(experiment, row, settings, say)
