"""Recipes: functions that return the configuration of a published experiment, or of an embedded example.

Settings are by the name of the option; a recipe also sets options of methods other than its own, for whoever chooses
one of these.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import partial
from pathlib import Path
from typing import Any

from eblvm.engine.config import Config
from eblvm.engine.data.sets import KINDS as DATASETS
from eblvm.engine.data.sets.points import Points
from eblvm.engine.errors import UserError, unknown
from eblvm.engine.methods import KINDS as METHODS
from eblvm.engine.methods.vages import Vages
from eblvm.engine.options import flag, nodes


def checkerboard(method: str = "bidsm") -> Config:
    """The 2x2 board on the unit square, GRBM with 4 latent units (BiSM section 5.1, appendix B.1). Needs no files."""
    own: dict[str, dict[str, Any]] = {"is-ksd": {"K": 0, "proposal": "uniform"}, "vnce": {"latent_samples": 5}}
    return Config.of(
        "checkerboard", method, "grbm", "checkerboard", latent=4, sigma=0.05, steps=100_000, kernel_width=0.1,
        contrast="standard", **own.get(method, {}),
    )  # fmt: skip


def points(name: str, method: str = "bidsm") -> Config:
    """Another embedded set in the plane, GRBM with 16 latent units. Needs no files."""
    sigma, latent = (0.3, 4) if name == "checkerboard4" else (0.1, 16)
    return Config.of(name, method, "grbm", name, latent=latent, sigma=sigma, steps=100_000)


def points_deep(name: str, method: str = "bidsm") -> Config:
    """The EBLVM of MLPs on points: sharp edges in about a minute on a CPU. Needs no files. VaGES takes K=5: with K=1 it
    diverged on the 2x2 board (docs/newton.md)."""
    toy = DATASETS[name]
    assert isinstance(toy, Points)
    K = 5 if method.startswith("vages") else 1
    return Config.of(
        name, method, "mlp", name, latent=2, sigma=0.07 * toy.std, divergence="kl", N=0, K=K, batch=500, steps=2_000,
        lr=(3e-3,), schedule="cosine", beta2=0.999, data_mean=toy.mean, data_std=toy.std,
    )  # fmt: skip


def freyface(method: str = "bidsm") -> Config:
    """Frey face, 28x20, GRBM with 400 latent units (BiSM section 5.1, appendix B.1). Needs --data."""
    return Config.of("freyface", method, "grbm", "freyface", latent=400, sigma=0.3, steps=20_000, lr=(2e-4,))


def digits(method: str = "bidsm") -> Config:
    """scikit-learn's bundled 8x8 digits, GRBM with 64 latent units: the embedded image example. Needs no files."""
    return Config.of("digits", method, "grbm", "digits", latent=64, sigma=0.3, steps=5_000)


def deep(recipe: str, method: str, small: bool = False, **settings: Any) -> Config:
    """BiMDSM on the deep EBLVM, an 18-layer ResNet (BiSM section 5.2, appendix B.2): h of 50, K=5, N=0, Fisher, batch
    100, a cosine to 1e-6; with `--method vages-mdsm` also L=2, C=5 and averages of theta and phi (VaGES appendix
    F.2.2). A --small variant has a schedule of its own. All but the digits need --data."""
    published: dict[str, Any] = {
        "divergence": "fisher", "latent": 50, "K": 5, "N": 0, "sigma_range": (0.05, 1.2), "sigma_spacing": "linear",
        "sigma0": 0.1, "batch": 100, "steps": 300_000, "lr": (5e-5,), "posterior_width": 48, "checkpoint_every": 5000,
        "L": 2, "C": 5,
    }  # fmt: skip
    if small or recipe == "digits":
        published |= SMALL
    else:
        published |= {"schedule": "cosine", "final_lr": 1e-6} | ({"ema": 0.999} if is_vages(method) else {})
    return Config.of(recipe, method, "deep", recipe, small, **published | settings)


def is_vages(method: str) -> bool:
    return any(isinstance(node, Vages) for node in nodes(METHODS[method]))


SMALL: dict[str, Any] = {"width": 16, "depth": 12, "posterior_width": 16, "batch": 32, "lr": (3e-4,), "steps": 2_000}
LEVELS: dict[str, Any] = {"sigma_range": (0.1, 3.0), "sigma_spacing": "geometric"}  # of digits


def mnist(method: str = "bimdsm", small: bool = False) -> Config:
    """MNIST in a frame of 32x32, 12-layer ResNet of 64 channels. Needs --data."""
    if small:
        small_mnist: dict[str, Any] = {"lr": (2e-4,), "lower_lr": 5e-4, "size": 16, "steps": 5_000}
        return deep("mnist", method, True, **LEVELS, **small_mnist, schedule="cosine", ema=0.999)
    return deep("mnist", method, **LEVELS, depth=12, width=64, lr=(1e-4,), steps=100_000)


def celeba64(method: str = "bimdsm", small: bool = False) -> Config:
    """CelebA at 64x64, 24-layer ResNet; 18 layers and 50 short Langevin steps for VaGES. Needs --data."""
    own: dict[str, Any] = {"depth": 24}
    if is_vages(method):
        own = {"depth": 18, "C": 50, "langevin_alpha": 5e-4}
    return deep("celeba64", method, small, flip=True, **({} if small else own))


def celeba128(method: str = "bidvl", small: bool = False) -> Config:
    """CelebA at 128x128, for --method bidvl. Needs --data."""
    raise UserError("recipe 'celeba128' is BiDVL's; add --method bidvl")


# Steps of BiDVL in an epoch of its released programs, whose CelebA is 50,000 of the faces.
STEPS_PER_EPOCH = {"mnist": 600, "cifar10": 500, "svhn": 733, "celeba32": 500, "celeba64": 1000, "celeba128": 1389}


def with_generator(recipe: str, method: str, small: bool) -> Config:
    """BiDVL (section 5, appendix B, and where these are silent the released programs): Adam 0/0.9, rates decaying by
    0.998 per epoch, 600 epochs at 32 and 64 pixels."""
    epoch = STEPS_PER_EPOCH.get(recipe, 500)
    published: dict[str, Any] = {
        "latent": 100, "K": 1, "N": 0, "width": 64, "posterior_width": 48, "generator_width": 48, "batch": 100,
        "lr": (1e-4,), "lower_lr": 3e-4, "beta1": 0.0, "beta2": 0.9, "weight_decay": 1e-4, "schedule": "step",
        "decay": 0.998, "decay_every": epoch, "steps": 600 * epoch, "checkpoint_every": 1000, "initial": "normal",
        "crop": 160,
    }  # fmt: skip
    model = "sn-conv"
    if recipe == "celeba64":
        published |= {"ratio": 0.1, "batch": 50}
    if recipe == "celeba128":
        model = "sn-resnet"
        published |= {
            "width": 64, "posterior_width": 64, "generator_width": 64, "latent": 128, "upper": "hinge",
            "output": "real", "lr": (2e-4,), "lower_lr": 2e-4, "batch": 36, "weight_decay": 0.0, "steps": 300_000,
            "initial": "xavier", "latent_term": "sum", "latent_weight": 1e-4,
        }  # fmt: skip
    widths = {"width": 16, "posterior_width": 16, "generator_width": 16}
    if recipe == "digits":
        published |= {"latent": 20, **widths, "steps": 2_000, "lower_lr": 1e-3, "initial": "xavier"}
    elif small:
        published |= {**widths, "batch": 32, "lr": (3e-4,), "lower_lr": 1e-3, "steps": 4_000, "checkpoint_every": 250}
    return Config.of(recipe, method, model, recipe, small, **published)


TOYS = ("checkerboard4", "moons", "swissroll", "circle", "blobs", "eightgaussians")
EMBEDDED: dict[str, Callable[[str], Config]] = {
    "checkerboard": checkerboard, "freyface": freyface, "digits": digits,
    **{name: partial(points, name) for name in TOYS},
}  # fmt: skip
IMAGES: dict[str, Callable[[str, bool], Config]] = {
    "mnist": mnist, **{name: partial(deep, name) for name in ("cifar10", "svhn")},
    "celeba32": partial(deep, "celeba32", flip=True), "celeba64": celeba64, "celeba128": celeba128,
    "images": partial(deep, "images"),  # pictures or arrays of your own at --size pixels
}  # fmt: skip
RECIPES = (*EMBEDDED, *IMAGES)


def recipe(name: str, model: str | None = None, small: bool = False, method: str | None = None) -> Config:
    """The configuration of a recipe, for another model, as its --small variant, with another method."""
    if name not in RECIPES:
        raise unknown("recipe", name, list(RECIPES))
    if method is not None and method not in METHODS:
        raise unknown("method", method, list(METHODS))
    if small and name in EMBEDDED:
        raise UserError(f"recipe {name!r} is small already; remove --small")
    given = () if method is None else (method,)
    if method is not None and METHODS[method].generates and name in (*STEPS_PER_EPOCH, "images", "digits"):
        found = with_generator(name, method, small)
    elif name in IMAGES:
        found = IMAGES[name](method or "bimdsm", small)
    elif model == "mlp" and name in ("checkerboard", *TOYS):
        found = points_deep(name, *given)
    elif name == "digits" and model == "deep":  # the embedded deep example, about two minutes on a CPU
        found = deep(name, method or "bimdsm", **LEVELS, latent=20)
    else:
        found = EMBEDDED[name](*given)
    return found if model in (None, found.model.kind) else found.replaced(model=model)


def command(config: Config) -> str | None:
    """The command that trains it again; a model of one's own has none."""
    return " ".join(["eblvm train", config.recipe, *arguments(config)]) if config.recipe in RECIPES else None


def arguments(config: Config, without: Collection[str] = ()) -> list[str]:
    """The options of `eblvm train` that make `config` of its recipe; of a data set the name, no folders."""
    method, model = config.method.kind, config.model.kind
    start = recipe(config.recipe, model, config.small, method)
    found = ["--small"] if config.small else []
    if config.method.generates or method != recipe(config.recipe, model, config.small).method.kind:
        found.append(f"--method {method}")
    if model != recipe(config.recipe, None, config.small, method).model.kind:
        found.append(f"--model {model}")
    # A model's slots first: the kinds of a method's may follow from them.
    slots = [leaf for leaf in config.leaves() if leaf.is_slot and len(leaf.path) > 1]
    for leaf in sorted(slots, key=lambda leaf: leaf.path[0] != "model"):
        if start.get(leaf.name) != leaf.value:
            start = start.replaced(**{leaf.name: leaf.value})
            found.append(f"{flag(leaf.name)} {leaf.value}")
    before = {leaf.name: leaf.value for leaf in start.leaves()}
    for leaf in config.leaves():
        name, value = leaf.name, leaf.value
        if leaf.is_slot or name in (*without, "cache") or value == before.get(name):
            continue
        if isinstance(value, bool):
            found.append(flag(name) if value else "--no-" + name.replace("_", "-"))
        elif isinstance(value, tuple):
            found.append(f"{flag(name)} {','.join(map(repr, value))}")
        else:
            found.append(f"{flag(name)} {Path(value).name if name == 'data' else value}")
    return found
