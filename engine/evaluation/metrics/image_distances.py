"""FID, KID and, where Inception gives logits, the Inception Score of samples against a reference set.

Features are kept in chunks beside the samples, those of a reference set under the hashes of its images and of the
weights, so that every run on the same data shares them. `$EBLVM_CACHE` says where, otherwise ~/.cache/eblvm.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from eblvm.engine.data import cache
from eblvm.engine.evaluation.chunks import WHOLE, Shard, chunks
from eblvm.engine.evaluation.fingerprint import fingerprint
from eblvm.engine.evaluation.image_sets import as_bytes
from eblvm.engine.evaluation.metrics.frechet import Moments, frechet_distance
from eblvm.engine.evaluation.metrics.inception import FEATURES, Inception
from eblvm.engine.evaluation.metrics.inception_score import inception_score
from eblvm.engine.evaluation.metrics.kernel_distance import kernel_distance
from eblvm.kernels.philox import Key

KID_FEATURES = 10_000  # of each set: KID looks at subsets, FID and the Inception Score at everything


@dataclass(frozen=True)
class Images:
    """uint8 images [count, C, S, S] by (first, count), and the folder where what is made of them is kept."""

    count: int
    get: Callable[[int, int], Tensor]
    folder: Path


def cached_images(v: Tensor, count: int | None = None) -> Images:
    """The first `count` images of a set (none: all), whose features are kept in the cache under the set's hash."""
    images = as_bytes(v)
    folder = cache.root(None) / fingerprint({"": images})[:16]
    return Images(min(count or len(v), len(v)), lambda first, n: images[first : first + n], folder)


def inception_features(
    images: Images, net: Inception, shard: Shard = WHOLE, description: str = "features"
) -> Iterator[Tensor]:
    folder = images.folder / f"inception-{net.digest[:16]}"
    return chunks(folder, images.count, lambda first, n: net(images.get(first, n)), shard, description)


def image_distances(samples: Images, reference: Images, net: Inception, seed: int = 0) -> dict[str, Any]:
    """The figures by name, with the number of samples in every name: no FID without it."""
    ours, x, logits = _gathered(inception_features(samples, net, description="Inception, samples"))
    theirs, y, _ = _gathered(inception_features(reference, net, description="Inception, reference"))
    kid = kernel_distance(x, y, Key(seed, 0))
    figures = {
        f"fid_{ours.count}": frechet_distance(ours, theirs),
        f"kid_{ours.count}": kid.mean,
        f"kid_{ours.count}_deviation": kid.deviation,
    }
    if net.has_logits:
        score = inception_score(logits)
        figures[f"inception_score_{ours.count}"] = score.mean
        figures[f"inception_score_{ours.count}_deviation"] = score.deviation
    return figures


def _gathered(found: Iterator[Tensor]) -> tuple[Moments, Tensor, Tensor]:
    """Moments of all features, the first features themselves, and all logits."""
    moments: Moments | None = None
    kept: list[Tensor] = []
    logits: list[Tensor] = []
    for chunk in found:
        part = Moments.of(chunk[:, :FEATURES])
        moments = part if moments is None else moments + part
        if moments.count - len(chunk) < KID_FEATURES:
            kept.append(chunk[:, :FEATURES])
        logits.append(chunk[:, FEATURES:])
    assert moments is not None
    return moments, torch.cat(kept)[:KID_FEATURES], torch.cat(logits)
