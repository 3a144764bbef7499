"""`eblvm.fid` and `eblvm.distances`: distances between two sets of images."""

from __future__ import annotations

from pathlib import Path

from torch import Tensor

from eblvm.engine.errors import unknown
from eblvm.engine.evaluation.image_sets import read_images
from eblvm.engine.evaluation.metrics import dinov2, inception
from eblvm.engine.evaluation.metrics.image_distances import cached_images, image_distances


def fid(a: str | Path | Tensor, b: str | Path | Tensor, *, weights: str | Path | None = None) -> float:
    """The Frechet Inception distance between two sets of images.

    A set is a folder of pictures, an .npz or .pt file, or a tensor [n, C, S, S] in [0, 1] or of bytes. `weights` is an
    Inception file; otherwise the installed one is used. Small sets are biased upwards: compare equal counts."""
    return distances(a, b, weights=weights)["fid"]


def distances(
    a: str | Path | Tensor, b: str | Path | Tensor, *, features: str = "inception", weights: str | Path | None = None
) -> dict[str, float]:
    """Distances of the samples `a` to the real images `b`, sets as of `fid`, by name.

    fid, kid, kid_deviation, precision and recall (k = 3; of sets of more than 3), by Inception's features; of
    `features="dinov2"` fd_dinov2, kd_dinov2, kd_dinov2_deviation, precision_dinov2 and recall_dinov2. `weights` is the
    network's file; otherwise the installed one is used."""
    networks = {"inception": inception.load, "dinov2": dinov2.load}
    if features not in networks:
        raise unknown("features", features, list(networks))
    net = networks[features](None if weights is None else Path(weights))
    samples, reference = (cached_images(x if isinstance(x, Tensor) else read_images(Path(x), None)) for x in (a, b))
    figures = image_distances(samples, reference, net, 0)
    return {name.replace(f"_{samples.count}", ""): float(value) for name, value in figures.items()}
