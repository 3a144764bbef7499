"""The starts of a run's chains: v, and h at random or at the posterior means of training data."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from eblvm.kernels import philox

if TYPE_CHECKING:
    from eblvm.engine.runs.saved import SavedRun

STARTS = ("normal", "uniform")
START_HELP = "of the chains: normal, 1/2 + N(0, 1); uniform over the data; none: normal for images, else uniform"


def started(run: SavedRun, start: str | None, key: philox.Key, count: int, first: int = 0) -> torch.Tensor:
    """v of chains first, first + 1, ...: 1/2 + N(0, 1), or uniform over the range of the data."""
    purpose = philox.purpose(philox.Purpose.SAMPLE_V)
    if (start or run.config.dataset.chain_start) == "normal":
        return normal_start(key, count, run.shape, first, **dtype_and_device(run))
    low, high = value_range(run)
    return low + (high - low) * philox.uniform(key, purpose, count, run.shape, first=first, **dtype_and_device(run))


def normal_start(key: philox.Key, count: int, shape: tuple[int, ...], first: int = 0, **kwargs: Any) -> torch.Tensor:
    """The published start: v = 1/2 + z with z ~ N(0, 1), [count, *shape], for images in [0, 1]."""
    return 0.5 + philox.normal(key, philox.purpose(philox.Purpose.SAMPLE_V), count, shape, first=first, **kwargs)


def random_h(run: SavedRun, key: philox.Key, count: int, first: int = 0) -> torch.Tensor:
    """h ~ N(0, I) of samples first, first + 1, ..., [count, H]."""
    latent = run.config.model.latent if run.posterior is None else run.posterior.latent
    purpose = philox.purpose(philox.Purpose.SAMPLE_H)
    return philox.normal(key, purpose, count, (latent,), first=first, **dtype_and_device(run))


def posterior_means(run: SavedRun, model: str, count: int, seed: int, first: int = 0) -> torch.Tensor:
    """Means of q(h|v) of `training_samples`, [count, H]; of an export without its data those that it brings along,
    which for seed 0 are the same."""
    assert run.posterior is not None
    if (kept := run.kept_means) is not None:
        places = torch.arange(first, first + count) % len(kept) if seed == 0 else chosen(len(kept), count, seed, first)
        return kept[places.to(kept.device)]
    posterior, samples = run.posterior.at(run.phi(model)), training_samples(run, count, seed, first)
    with torch.no_grad():
        return torch.cat([posterior.mean(posterior.params(v)) for v in samples.split(1000)])


def training_samples(run: SavedRun, count: int, seed: int, first: int = 0) -> torch.Tensor:
    """Training samples in an order of the seed's; after all of them follows another order."""
    places = chosen(len(run.dataset.train), count, seed, first)
    return run.dataset.floats(run.dataset.train[places.to(run.config.running.device)])


def chosen(total: int, count: int, seed: int, first: int) -> torch.Tensor:
    """Numbers below `total`: places first, first + 1, ... of one order of the seed's after the other."""
    rounds = range(first // total, (first + count - 1) // total + 1)
    purpose = philox.purpose(philox.Purpose.EVAL)
    order = torch.cat([philox.permutation(philox.Key(seed, i), purpose, total) for i in rounds])
    return order[first - rounds[0] * total :][:count]


def value_range(run: SavedRun) -> tuple[float, float]:
    """The lowest and highest value in the training data."""
    return float(run.extent.min()), float(run.extent.max())


def dtype_and_device(run: SavedRun) -> dict[str, Any]:
    """Of a run's samples, for noise."""
    running = run.config.running
    return {"dtype": getattr(torch, running.dtype), "device": torch.device(running.device)}
