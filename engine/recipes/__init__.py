"""Recipes: functions that return the configuration of a published experiment, or of an embedded example."""

from collections.abc import Callable, Collection
from dataclasses import fields
from pathlib import Path
from typing import Any

from eblvm.engine.config import Config
from eblvm.engine.errors import UserError, unknown


def checkerboard() -> Config:
    """2-D checkerboard, GRBM with 4 latent units (BiSM section 5.1, appendix B.1). Needs no files."""
    return Config(recipe="checkerboard", latent=4, sigma=0.05, steps=100_000, batch=100, lr=(1e-3,))


def freyface() -> Config:
    """Frey face, 28x20, GRBM with 400 latent units (BiSM section 5.1, appendix B.1). Needs --data."""
    return Config(recipe="freyface", latent=400, sigma=0.3, steps=20_000, batch=100, lr=(2e-4,))


def digits() -> Config:
    """scikit-learn's bundled 8x8 digits, GRBM with 64 latent units: the embedded image example. Needs no files."""
    return Config(recipe="digits", latent=64, sigma=0.3, steps=5_000, batch=100, lr=(1e-3,))


def deep(recipe: str, **settings: Any) -> Config:
    """BiMDSM on the deep EBLVM as published (BiSM section 5.2, appendix B.2): h of 50, K=5, N=0, Fisher, batch 100;
    with `--method vages-mdsm` L=2 and C=5 (VaGES appendix F.2.2)."""
    published: dict[str, Any] = {
        "model": "deep", "method": "bimdsm", "posterior": "conv", "divergence": "fisher", "latent": 50, "K": 5, "N": 0,
        "sigma_range": (0.05, 1.2), "sigma_spacing": "linear", "sigma0": 0.1, "batch": 100, "steps": 300_000,
        "lr": (5e-5,), "posterior_width": 48, "checkpoint_every": 5000, "L": 2, "C": 5,
    }  # fmt: skip
    return Config(recipe=recipe, **published | settings)


SMALL: dict[str, Any] = {"small": True, "width": 16, "depth": 12, "posterior_width": 16, "batch": 32, "lr": (3e-4,)}


def digits_deep() -> Config:
    """The deep EBLVM on the 8x8 digits: the embedded deep example, about two minutes on a CPU. Needs no files."""
    return deep(
        "digits", sigma_range=(0.1, 3.0), sigma_spacing="geometric", latent=20, steps=2_000, **SMALL | {"small": False}
    )


def mnist(small: bool) -> Config:
    """MNIST in a frame of 32x32, 12-layer ResNet. Needs --data."""
    levels: dict[str, Any] = {"sigma_range": (0.1, 3.0), "sigma_spacing": "geometric"}
    if small:
        return deep(
            "mnist",
            **levels,
            **SMALL | {"lr": (2e-4,)},
            lower_lr=5e-4,
            size=16,
            steps=5_000,
            schedule="cosine",
            ema=0.999,
        )
    return deep("mnist", **levels, depth=12, lr=(1e-4,), steps=100_000)


def cifar10(small: bool) -> Config:
    """CIFAR-10, 18-layer ResNet. Needs --data."""
    return deep("cifar10", **SMALL, steps=2_000) if small else deep("cifar10")


def svhn(small: bool) -> Config:
    """SVHN, with the settings of CIFAR-10. Needs --data."""
    return cifar10(small).replaced(recipe="svhn")


def celeba32(small: bool) -> Config:
    """CelebA at 32x32, 18-layer ResNet. Needs --data."""
    return cifar10(small).replaced(recipe="celeba32")


def celeba64(small: bool) -> Config:
    """CelebA at 64x64, 24-layer ResNet. Needs --data."""
    return deep("celeba64", **SMALL, steps=2_000) if small else deep("celeba64", depth=24)


def celeba128(small: bool) -> Config:
    """CelebA at 128x128, for --method bidvl. Needs --data."""
    raise UserError("recipe 'celeba128' is BiDVL's; add --method bidvl")


BIDVL_EPOCHS = {
    "mnist": 600,
    "cifar10": 500,
    "svhn": 732,
    "celeba32": 1626,
    "celeba64": 1626,
    "celeba128": 1626,
}  # steps of 100


def bidvl(recipe: str, small: bool) -> Config:
    """BiDVL as published (section 5, appendix B): Adam 0/0.9, rates decaying by 0.998 an epoch of the full data set."""
    published: dict[str, Any] = {
        "model": "sn-conv", "method": "bidvl", "latent": 100, "K": 1, "N": 0, "width": 64, "posterior_width": 48,
        "generator_width": 48, "batch": 100, "lr": (1e-4,), "lower_lr": 3e-4, "beta1": 0.0, "beta2": 0.9,
        "weight_decay": 1e-4, "schedule": "step", "decay": 0.998, "decay_every": BIDVL_EPOCHS.get(recipe, 500),
        "steps": 300_000, "checkpoint_every": 1000,
    }  # fmt: skip
    if recipe == "celeba64":
        published |= {"bidvl_ratio": 0.1}
    if recipe == "celeba128":
        published |= {
            "model": "sn-resnet", "width": 64, "posterior_width": 64, "generator_width": 64, "latent": 128,
            "bidvl_ratio": 0.1, "bidvl_upper": "hinge", "bidvl_output": "real",
        }  # fmt: skip
    if recipe == "digits":
        published |= {"latent": 20, "width": 16, "posterior_width": 16, "generator_width": 16, "steps": 2_000,
                      "lower_lr": 1e-3}  # fmt: skip
    elif small:
        published |= {"small": True, "width": 16, "posterior_width": 16, "generator_width": 16, "batch": 32,
                      "lr": (3e-4,), "lower_lr": 1e-3, "steps": 4_000, "checkpoint_every": 250}  # fmt: skip
    return Config(recipe=recipe, **published)


GRBM_RECIPES: dict[str, Callable[[], Config]] = {"checkerboard": checkerboard, "freyface": freyface, "digits": digits}
DEEP_RECIPES: dict[str, Callable[[bool], Config]] = {
    "mnist": mnist, "cifar10": cifar10, "svhn": svhn, "celeba32": celeba32, "celeba64": celeba64,
    "celeba128": celeba128,
}  # fmt: skip
RECIPES = (*GRBM_RECIPES, *DEEP_RECIPES)


def recipe(name: str, model: str | None = None, small: bool = False, method: str | None = None) -> Config:
    """The configuration of a recipe, of its --small variant, of digits for --model deep, of images for bidvl."""
    if method == "bidvl" and name in (*BIDVL_EPOCHS, "digits") and not (small and name == "digits"):
        return bidvl(name, small)
    if name in DEEP_RECIPES:
        return DEEP_RECIPES[name](small)
    if name not in GRBM_RECIPES:
        raise unknown("recipe", name, list(RECIPES))
    if small:
        raise UserError(f"recipe {name!r} is small already; leave --small out")
    if name == "digits" and model == "deep":
        return digits_deep()
    return GRBM_RECIPES[name]()


def options(config: Config, leave_out: Collection[str] = ()) -> list[str]:
    """The options of `eblvm train` that make `config` of its recipe; of a data set the name, no folders."""
    start, found = recipe(config.recipe, config.model, config.small, config.method), []
    if config.small:
        found.append("--small")
    if config.method == "bidvl":
        found.append("--method bidvl")
    if config.model == "deep" and config.recipe in GRBM_RECIPES:
        found.append("--model deep")
    for f in fields(Config):
        value, flag = getattr(config, f.name), f.name.replace("_", "-")
        if f.name in (*leave_out, "cache") or value == getattr(start, f.name):
            continue
        if isinstance(value, bool):
            found.append(f"--{flag}" if value else f"--no-{flag}")
        elif isinstance(value, tuple):
            found.append(f"--{flag} {','.join(map(repr, value))}")
        else:
            found.append(f"--{flag} {Path(value).name if f.name == 'data' else value}")
    return found
