"""Where the Langevin chains of a run start."""

from pathlib import Path

import pytest
import torch
from torch import Tensor

from eblvm.engine import sampling
from eblvm.engine.data.sets import KINDS
from eblvm.engine.errors import UserError
from eblvm.engine.runs.saved import SavedRun
from eblvm.engine.sampling.langevin import conditional_score, denoised
from eblvm.engine.sampling.starts import normal_start, posterior_means
from eblvm.kernels.philox import Key


def sample(run: SavedRun, model: str, count: int, steps: int, start: str | None = None) -> Tensor:
    return sampling.sampler_of(run, steps=steps, start=start).sample(run, model, count).values


def test_chains_start_where_they_are_told(deep: Path) -> None:
    """Without a step a sample is its start, denoised."""
    run = SavedRun.open(deep)
    model = run.default_model()
    theta, h = run.thetas(model)[0], posterior_means(run, model, 4, 0)
    start = normal_start(Key(0, 0), 4, (1, 8, 8))
    expected = denoised(conditional_score(run.energy, theta, h), (start,), run.config.method.blur)
    torch.testing.assert_close(sample(run, model, 4, 0, start="normal"), expected)
    assert torch.equal(sample(run, model, 4, 0), sample(run, model, 4, 0, start="uniform"))
    assert not torch.equal(sample(run, model, 4, 0), expected)
    with pytest.raises(UserError, match="unknown start 'cold'; valid: normal, uniform"):
        sample(run, model, 4, 0, start="cold")


def test_images_start_as_published() -> None:
    assert {name for name, dataset in KINDS.items() if dataset.chain_start == "normal"} == {
        "mnist", "cifar10", "svhn", "celeba32", "celeba64", "celeba128", "images",
    }  # fmt: skip
