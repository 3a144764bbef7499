"""Runs that samplers are tried on: small, trained for one step."""

from pathlib import Path

import pytest

from eblvm.engine import recipes
from eblvm.engine.training.loop import train


@pytest.fixture(scope="session")
def deep(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a deep EBLVM on the digits as images of 8x8, with three latent units."""
    folder = tmp_path_factory.mktemp("deep")
    config = recipes.recipe("digits", "deep").replaced(width=2, posterior_width=2, latent=3, batch=4, steps=1)
    train(config, folder)
    return folder
