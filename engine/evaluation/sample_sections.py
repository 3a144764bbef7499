"""Sections on samples: a picture with their nearest training images, and distances to the training images."""

from typing import Any

import torch
from torch import Tensor

from eblvm.engine.errors import UserError
from eblvm.engine.evaluation import plots
from eblvm.engine.evaluation.figures import Figures
from eblvm.engine.evaluation.image_sets import as_bytes, as_images, has_images
from eblvm.engine.evaluation.kept_samples import Source
from eblvm.engine.evaluation.metrics.extractor import Extractor
from eblvm.engine.evaluation.metrics.image_distances import ImageSet, cached_images, image_distances
from eblvm.engine.evaluation.metrics.inception import load as load_inception
from eblvm.engine.evaluation.metrics.neighbours import neighbours
from eblvm.engine.evaluation.sample_chunks import tensor_digest
from eblvm.engine.evaluation.section import SHOWN, EvalOptions, Section, of_first
from eblvm.engine.runs.saved import SavedRun

NEAREST = 5  # training neighbours of a sample


def samples_section(run: SavedRun, source: Source, count: int, given: Tensor | None) -> Section:
    """A picture of samples; of images also their nearest training images, and those of as many test images."""
    flat = run.dataset.image_shape

    def compute() -> list[Figures]:
        v = source.first(count) if given is None else given[:count].cpu()
        plots.samples(run.dataset.floats(v[:SHOWN]), flat, run.folder / "samples.png")
        mixed = source.sampler.mixing(source.run, source.model, source.seed) if given is None else None
        mixed_figures: Figures = {f"samples_{k}": v for k, v in mixed.figures().items()} if mixed else {}
        if not has_images(run):
            return [mixed_figures]
        # In bytes, so that a training image that is remembered has distance 0.
        samples, train, test = (as_bytes(as_images(x.cpu(), flat)) for x in (v, run.dataset.train, run.dataset.test))
        near = neighbours(samples, train, NEAREST, 255)
        rows = torch.cat([samples[:10, None], train[near.index[:10]]], 1).flatten(0, 1)
        title = f"in each row a sample (left) and its {NEAREST} nearest training images{of_first(run)}"
        plots.image_grid(rows / 255, run.folder / "neighbours.png", NEAREST + 1, title)
        unseen = neighbours(test[:count], train, 1, 255)
        mixed_figures["neighbour_distance_samples"] = float(near.distance[:, 0].mean())
        return [mixed_figures | {"neighbour_distance_test": float(unseen.distance.mean())}]

    return Section("samples", {"count": count, **_described(source, given)}, compute)


def _described(source: Source, given: Tensor | None) -> dict[str, Any]:
    return source.settings if given is None else {"given": len(given), "data": tensor_digest({"": given})}


def fid_section(run: SavedRun, source: Source, options: EvalOptions, given: Tensor | None) -> Section:
    samples, reference, net = fid_inputs(run, source, options, given)
    settings = {
        "samples": samples.count,
        "reference": f"{reference.count} training images",
        "inception": net.name,
        "inception_weights": net.digest,
        "inception_score": "below" if net.has_logits else f"none, {net.name} has no logits: install torch-fidelity",
        **_described(source, given),
    }
    return Section("fid", settings, lambda: [image_distances(samples, reference, net, options.seed)])


def fid_inputs(
    run: SavedRun, source: Source, options: EvalOptions, given: Tensor | None = None
) -> tuple[ImageSet, ImageSet, Extractor]:
    """The samples, drawn or given, the training images that they are compared with, and the Inception."""
    assert options.fid is not None
    if not has_images(run):
        raise UserError(f"FID is a distance between images, {run.folder} is a run on points; remove --fid")
    flat = run.dataset.image_shape
    if given is not None and len(given) < options.fid:
        raise UserError(f"{options.samples} has {len(given)} images, got --fid {options.fid}; ask for fewer")
    samples = source.images(options.fid) if given is None else cached_images(as_images(given, flat), options.fid)
    reference = cached_images(as_images(run.dataset.train, flat), options.reference)
    return samples, reference, load_inception(options.inception, run.config.running.device)
