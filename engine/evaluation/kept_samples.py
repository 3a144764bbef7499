"""Samples of a run that are drawn for its evaluation, kept in its folder in chunks, as drawing is slow."""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from eblvm.engine import sampling
from eblvm.engine.evaluation.image_sets import as_bytes, as_images
from eblvm.engine.evaluation.metrics.image_distances import ImageSet
from eblvm.engine.evaluation.sample_chunks import chunk, chunks
from eblvm.engine.runs.saved import SavedRun
from eblvm.engine.sampling.base import Sampler


@dataclass(frozen=True)
class Source:
    """A sampler: the model, known by its weights, and how it is sampled."""

    run: SavedRun
    model: str
    weights: str
    kind: str | None
    steps: int | None
    seed: int

    @cached_property
    def sampler(self) -> Sampler:
        return sampling.sampler_of(self.run, target=self.kind, steps=self.steps)

    @property
    def settings(self) -> dict[str, Any]:
        """Samples that an older version kept started elsewhere: the start is a part of where they are kept."""
        settings = {"kind": self.kind or "default", "steps": self.steps or "default", "seed": self.seed}
        if (start := self.run.config.dataset.chain_start) != "uniform" and not self.run.config.model.generates:
            settings["start"] = start
        return settings

    @property
    def folder(self) -> Path:
        words = "-".join(f"{name}-{value}" for name, value in self.settings.items())
        return self.run.folder / "drawn" / f"{self.weights[:16]}-{words}"

    def __call__(self, first: int, count: int) -> Tensor:
        """Samples first .. first + count - 1; of images as bytes, as a picture file would have them."""
        v = self.sampler.sample(self.run, self.model, count, self.seed, first).values.cpu()
        return as_bytes(v) if v.dim() == 4 or self.run.dataset.image_shape else v

    def first(self, count: int) -> Tensor:
        """The first `count` samples."""
        return torch.cat(list(chunks(self.folder, count, self, description="samples")))

    def images(self, count: int) -> ImageSet:
        """The first `count` samples as images, a chunk drawn when it is asked for."""
        flat = self.run.dataset.image_shape
        return ImageSet(count, lambda first, n: as_images(chunk(self.folder, first, n, self), flat), self.folder)
