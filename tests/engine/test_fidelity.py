"""docs/fidelity.md: the column "ours" is what the recipes say, "same" is true, and no cell is open.

A table follows the command whose configuration it describes. A row names an option in backquotes, or one of FACTS."""

import inspect
import re
from collections.abc import Callable
from dataclasses import fields
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

from eblvm.bench.measurements import studies
from eblvm.engine import recipes
from eblvm.engine.cli.configuration import add_run_options, configuration
from eblvm.engine.cli.parser import Parser
from eblvm.engine.config import Config
from eblvm.engine.data import published
from eblvm.engine.data.contents import Contents, Split
from eblvm.engine.data.readers.picture_folder import SPLITS
from eblvm.engine.data.sets.base import FileData, ImageData
from eblvm.engine.data.sets.celeba import CelebA
from eblvm.engine.evaluation.metrics.likelihood import ais
from eblvm.engine.evaluation.studies import early_stopping
from eblvm.engine.evaluation.studies.fisher_critic import Critic, fisher_divergence
from eblvm.engine.methods.vages import Vages
from eblvm.engine.nets import bidvl
from eblvm.engine.nets.grbm import GRBM
from eblvm.engine.options import nodes
from eblvm.engine.sampling import gibbs, langevin
from eblvm.kernels.philox import Key

DOCS = Path(__file__).parents[2] / "docs"
PAGE = DOCS / "fidelity.md"
SILENT = "-"  # where a paper or a program says nothing


class Row(NamedTuple):
    command: str
    setting: str
    paper: str
    released: str
    ours: str
    same: str


def rows() -> list[Row]:
    found, command = [], ""
    for line in PAGE.read_text().splitlines():
        if line.startswith("### "):
            command = ""
        elif line.startswith("`eblvm "):
            command = line.strip("`")
        elif line.startswith("| ") and not line.startswith("| setting"):
            found.append(Row(command, *(cell.strip() for cell in line.strip("|").split(" | "))))
    return found


@cache
def config_of(command: str) -> Config | None:
    if not command.startswith("eblvm train"):
        return None
    parser = Parser("train", add_help=False)
    add_run_options(parser)
    return configuration(parser, parser.parse(command.split()[2:]))


def shown(value: Any) -> str:
    if isinstance(value, tuple):
        return ", ".join(map(shown, value))
    if isinstance(value, bool) or value is None:
        return {True: "yes", False: "no", None: "none"}[value]
    return f"{value:g}" if isinstance(value, float) else str(value)


# Facts that are no options, each read from the code that uses them.


@cache
def splits(config: Config) -> tuple[int, ...]:
    """Training, validation and test samples of the published files."""
    kind = config.dataset.kind
    if not isinstance(config.dataset, FileData):
        return tuple(len(part) for part in config.load_data()[:3])
    counts = published.COUNTS
    files = {
        "mnist": (counts["train-images-idx3-ubyte"], counts["t10k-images-idx3-ubyte"]),
        "cifar10": (5 * counts["data_batch_1"], counts["test_batch"]),
        "svhn": (counts["train_32x32.mat"], counts["test_32x32.mat"]),
    }
    blank = {n: Split(np.empty((n, 1, 1, 1), np.uint8)) for n in (1965, *(n for pair in files.values() for n in pair))}
    parts = (
        {"all": blank[1965]}
        if kind == "freyface"
        else dict(zip(("train", "test"), (blank[n] for n in files[kind]), strict=True))
    )
    divided = Contents("", parts).divided(config.dataset.held_out).splits
    return tuple(len(divided[name].images) for name in SPLITS)


def training_set(config: Config) -> str:
    if isinstance(config.dataset, CelebA):
        return f"the partition's {SPLITS[0]}ing faces"
    return str(splits(config)[0])


def coupling(_: Config) -> str:
    """Does the term of v and h see sigma?"""
    theta = GRBM(3, 2).initial(Key(0, 0))
    v, h = torch.ones(1, 3), torch.ones(1, 2)
    terms = []
    for log_sigma in (0.0, 1.0):
        held = theta | {"log_sigma": torch.full((3,), log_sigma)}
        terms.append(float(sum(s * GRBM(3, 2).at(held).energy(v, s_h)
                               for s, s_h in ((1, h), (-1, torch.zeros_like(h))))))  # fmt: skip
    return "v W h" if terms[0] == pytest.approx(terms[1]) else "v W h / sigma"


def grbm_start(_: Config) -> str:
    theta = GRBM(30, 16).initial(Key(0, 0))
    largest = max(float(theta[name].abs().max()) for name in ("W", "b", "c"))
    assert 0.24 < largest <= 0.25
    assert not theta["log_sigma"].any()
    return "uniform within 1/sqrt(H), sigma 1"


def sizes(config: Config) -> str:
    """Parameters of theta and phi with the published network."""
    config = config.replaced(network="published")
    energy = config.model.energy(config.shape, config.method.learns_q)
    posterior = config.method.estimator.posterior.build(config.shape, config.model)
    return ", ".join(str(sum(p.numel() for p in net.parameters())) for net in (energy, posterior))


def alpha(config: Config) -> str:
    vages = next(node for node in nodes(config.method) if isinstance(node, Vages))
    return shown(vages.alpha(config["latent"]))


def doubling(_: Config) -> str:
    x = torch.arange(4.0).view(1, 1, 2, 2)
    repeated = x.repeat_interleave(2, 2).repeat_interleave(2, 3)
    return "repeated pixels" if torch.equal(bidvl.doubled(x), repeated) else "interpolated"


def variance(config: Config) -> str:
    _, encoder, _ = config.model.generative(config.shape, joint=False)
    return "below 1" if encoder.bounded else "any"


def default(function: Callable[..., Any], name: str) -> str:
    return shown(inspect.signature(function).parameters[name].default)


FACTS: dict[str, Callable[[Any], str]] = {
    "training samples": training_set,
    "validation samples": lambda c: str(splits(c)[1]),
    "test samples": lambda c: str(splits(c)[2]),
    "term of v and h in the energy": coupling,
    "sigma of the GRBM": lambda _: (
        "one per unit" if GRBM(3, 2).initial(Key(0, 0))["log_sigma"].shape == (3,) else "one"
    ),
    "start of theta": grbm_start,
    "Gibbs sweeps of a sample": lambda _: str(gibbs.SWEEPS),
    "chains of AIS": lambda _: default(ais, "chains"),
    "temperatures of AIS": lambda _: default(ais, "temperatures"),
    "pairs of a batch": lambda c: str((c["batch"] // 2) ** 2),
    "pixels": lambda c: str(c.dataset.pixels),
    "parameters of theta, phi with --network published": sizes,
    "step of annealed Langevin dynamics": lambda _: shown(langevin.STEP_SIZE),
    "highest temperature": lambda _: shown(langevin.HOTTEST),
    "steps hot, falling, cooling": lambda _: f"{langevin.HOLD}, {langevin.ANNEAL}, {langevin.COOL}",
    "start of chains": lambda c: "1/2 + N(0, 1)" if isinstance(c.dataset, ImageData) else "uniform over the data",
    "samples of h in `eblvm sample`": lambda c: "posterior means of training data" if c.method.learns_q else "none",
    "FID samples that choose a checkpoint": lambda _: str(early_stopping.SAMPLES),
    "alpha of Langevin steps on h": alpha,
    "draws of h of the generator per step": lambda c: str(c["K"] + c["N"]),
    "upsampling of the generator": doubling,
    "variance of q": variance,
    "values of images": lambda _: "-1 to 1",
    "critic's hidden layers": lambda _: str(len([m for m in Critic(2, 3).net if hasattr(m, "weight")]) - 1),
    "critic's learning rate": lambda _: shown(studies.CRITIC_LR),
    "critic's steps": lambda _: str(studies.STEPS),
    "critic's batch": lambda _: default(fisher_divergence, "batch"),
    "latent units of the bias study": lambda _: str(studies.THEORY_LATENT),
}


def ours(row: Row) -> str:
    config = config_of(row.command)
    option = re.match(r"`(\w+)`", row.setting)
    if option is None:
        return FACTS[row.setting](config)
    assert config is not None
    return shown(config[option.group(1)])


ROWS = rows()


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row.command.removeprefix('eblvm train ')}: {row.setting}")
def test_row(row: Row) -> None:
    assert ours(row) == row.ours
    reference = row.released if row.paper == SILENT else row.paper
    assert reference != SILENT, "neither the paper nor its program says this"
    if reference == row.ours:
        assert row.same == "yes"
    else:
        assert len(row.same) > 15, "say why not"
        assert row.same != "yes"
    assert not any(word in " ".join(row[2:]).lower() for word in ("unknown", "?", "todo"))


def test_every_published_recipe_is_there() -> None:
    commands = {row.command for row in ROWS}
    named = {command.split()[2] for command in commands if command.startswith("eblvm train")}
    assert named == {"checkerboard", "freyface", *recipes.IMAGES} - {"images"}  # anybody's own pictures
    methods = {config["method"] for config in map(config_of, commands) if config is not None}
    assert {"bidsm", "bimdsm", "vages-dsm", "vages-ksd", "vages-mdsm", "is-ksd", "nce", "vnce", "bidvl"} <= methods


def test_every_option_of_a_recipe_has_a_row() -> None:
    """What a deep recipe or BiDVL's sets beyond the defaults is a published setting, or has no business there."""
    free = {"posterior_width", "checkpoint_every", "langevin_alpha"}  # lean networks; when it is saved; a fact above
    for command in sorted({row.command for row in ROWS if row.command}):
        config = config_of(command)
        if config is None or config["method"] in ("dsm", "mdsm"):
            continue
        described = {m.group(1) for row in ROWS if row.command == command and (m := re.match(r"`(\w+)`", row.setting))}
        defaults = {f.name: f.default for node in nodes(config) for f in fields(node) if "help" in f.metadata}
        changed = {leaf.name for leaf in config.leaves() if not leaf.is_slot and leaf.value != defaults[leaf.name]}
        assert changed - described - free <= set(), command
