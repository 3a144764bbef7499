"""Samples against a reference set: FID and KID, precision and recall, and the Inception Score where there are logits.

Features are kept in chunks next to the samples, those of a reference set under the hashes of its images and of the
weights, so that every run on the same data uses the same. `$EBLVM_CACHE` says where, otherwise ~/.cache/eblvm.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from eblvm.engine.data.pictures import cache
from eblvm.engine.evaluation.image_sets import as_bytes
from eblvm.engine.evaluation.metrics.extractor import Extractor
from eblvm.engine.evaluation.metrics.frechet import FeatureMoments, frechet_distance
from eblvm.engine.evaluation.metrics.inception_score import inception_score
from eblvm.engine.evaluation.metrics.kernel_distance import kernel_distance
from eblvm.engine.evaluation.metrics.precision_recall import precision_recall
from eblvm.engine.evaluation.sample_chunks import WHOLE, Shard, chunks, tensor_digest
from eblvm.kernels.philox import Key

KEPT = 10_000  # features of each set for KID, precision and recall; FID and the Inception Score use all


@dataclass(frozen=True)
class ImageSet:
    """uint8 images [count, C, S, S] by (first, count), and the folder where what is made of them is kept."""

    count: int
    get: Callable[[int, int], Tensor]
    folder: Path


def cached_images(v: Tensor, count: int | None = None) -> ImageSet:
    """The first `count` images of a set (none: all), whose features are kept in the cache under the set's hash."""
    images = as_bytes(v)
    folder = cache.root(None) / tensor_digest({"": images})[:16]
    return ImageSet(min(count or len(v), len(v)), lambda first, n: images[first : first + n], folder)


def extracted(
    images: ImageSet, net: Extractor, shard: Shard = WHOLE, description: str = "features"
) -> Iterator[Tensor]:
    folder = images.folder / f"{net.kind}-{net.digest[:16]}"
    return chunks(folder, images.count, lambda first, n: net(images.get(first, n)), shard, description)


def image_distances(samples: ImageSet, reference: ImageSet, net: Extractor, seed: int = 0) -> dict[str, Any]:
    """The figures by name, with the number of samples in every name: no FID without it. Those of DINOv2 are named
    fd_dinov2 and kd_dinov2."""
    title = {"inception": "Inception"}.get(net.kind, net.kind)
    ours, x, logits = _gathered(extracted(samples, net, description=f"{title}, samples"), net.width)
    theirs, y, _ = _gathered(extracted(reference, net, description=f"{title}, reference"), net.width)
    kid = kernel_distance(x, y, Key(seed, 0))
    frechet, kernel, more = ("fid", "kid", "") if net.kind == "inception" else ("fd", "kd", f"_{net.kind}")
    figures = {
        f"{frechet}{more}_{ours.count}": frechet_distance(ours, theirs),
        f"{kernel}{more}_{ours.count}": kid.mean,
        f"{kernel}{more}_{ours.count}_deviation": kid.deviation,
    }
    if (covered := precision_recall(x, y)) is not None:
        figures |= {f"precision{more}_{ours.count}": covered.precision, f"recall{more}_{ours.count}": covered.recall}
    if net.has_logits:
        score = inception_score(logits)
        figures[f"inception_score_{ours.count}"] = score.mean
        figures[f"inception_score_{ours.count}_deviation"] = score.deviation
    return figures


def _gathered(features: Iterator[Tensor], width: int) -> tuple[FeatureMoments, Tensor, Tensor]:
    """Moments of all features, the first features themselves, and all logits."""
    moments: FeatureMoments | None = None
    kept: list[Tensor] = []
    logits: list[Tensor] = []
    for chunk in features:
        part = FeatureMoments.of(chunk[:, :width])
        moments = part if moments is None else moments + part
        if moments.count - len(chunk) < KEPT:
            kept.append(chunk[:, :width])
        logits.append(chunk[:, width:])
    assert moments is not None
    return moments, torch.cat(kept)[:KEPT], torch.cat(logits)
