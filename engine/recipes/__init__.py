"""Recipes: functions that return the configuration of a published experiment, or of an embedded example."""

from collections.abc import Callable, Collection
from dataclasses import fields
from pathlib import Path

from eblvm.engine.config import Config
from eblvm.engine.errors import unknown


def checkerboard() -> Config:
    """2-D checkerboard, GRBM with 4 latent units (BiSM section 5.1, appendix B.1). Needs no files."""
    return Config(recipe="checkerboard", latent=4, sigma=0.05, steps=100_000, batch=100, lr=(1e-3,))


def freyface() -> Config:
    """Frey face, 28x20, GRBM with 400 latent units (BiSM section 5.1, appendix B.1). Needs --data."""
    return Config(recipe="freyface", latent=400, sigma=0.3, steps=20_000, batch=100, lr=(2e-4,))


def digits() -> Config:
    """scikit-learn's bundled 8x8 digits, GRBM with 64 latent units: the embedded image example. Needs no files."""
    return Config(recipe="digits", latent=64, sigma=0.3, steps=5_000, batch=100, lr=(1e-3,))


RECIPES: dict[str, Callable[[], Config]] = {"checkerboard": checkerboard, "freyface": freyface, "digits": digits}


def recipe(name: str) -> Config:
    if name not in RECIPES:
        raise unknown("recipe", name, list(RECIPES))
    return RECIPES[name]()


def options(config: Config, leave_out: Collection[str] = ()) -> list[str]:
    """The options of `eblvm train` that make `config` of its recipe; of a data set the name, not its folder."""
    start, found = recipe(config.recipe), []
    for f in fields(Config):
        value, flag = getattr(config, f.name), f.name.replace("_", "-")
        if f.name in leave_out or value == getattr(start, f.name):
            continue
        if isinstance(value, bool):
            found.append(f"--{flag}" if value else f"--no-{flag}")
        elif isinstance(value, tuple):
            found.append(f"--{flag} {','.join(map(repr, value))}")
        else:
            found.append(f"--{flag} {Path(value).name if f.name == 'data' else value}")
    return found
