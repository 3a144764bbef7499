"""Where the Langevin chains of a run start."""

from dataclasses import replace

import pytest
import torch

from eblvm.engine import recipes
from eblvm.engine.data.sets import KINDS
from eblvm.engine.errors import UserError
from eblvm.engine.runs.run import SavedRun
from eblvm.engine.sampling.langevin import conditional_score, denoised, normal_start
from eblvm.engine.sampling.run_samples import default_start, posterior_means, sample
from eblvm.engine.training.loop import train
from eblvm.kernels.philox import Key


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> SavedRun:
    folder = tmp_path_factory.mktemp("run")
    config = recipes.recipe("digits", "deep").replaced(width=2, posterior_width=2, latent=3, batch=4, steps=1)
    train(config, folder)
    return SavedRun.open(folder)


def test_chains_start_where_they_are_told(run: SavedRun) -> None:
    """Without a step a sample is its start, denoised."""
    model = run.default_model()
    theta, h = run.thetas(model)[0], posterior_means(run, model, 4, 0)
    start = normal_start(Key(0, 0), 4, (1, 8, 8))
    expected = denoised(conditional_score(run.energy, theta, h), (start,), run.config.method.blur)
    torch.testing.assert_close(sample(run, model, 4, 0, 0, start="normal"), expected)
    assert torch.equal(sample(run, model, 4, 0, 0), sample(run, model, 4, 0, 0, start="uniform"))
    assert not torch.equal(sample(run, model, 4, 0, 0), expected)
    with pytest.raises(UserError, match="unknown start 'cold'; valid: normal, uniform"):
        sample(run, model, 4, 0, 0, start="cold")


def test_images_start_as_published(run: SavedRun) -> None:
    starts = {}
    for name, dataset in KINDS.items():
        there = replace(run, config=replace(run.config, dataset=dataset))
        starts[name] = default_start(there)
    assert {name for name, start in starts.items() if start == "normal"} == {
        "mnist", "cifar10", "svhn", "celeba32", "celeba64", "celeba128", "images",
    }  # fmt: skip
