"""Samples of a generator v = G(h): one pass, no chain."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from eblvm.engine.errors import UserError, unknown
from eblvm.engine.options import option
from eblvm.engine.sampling.base import Sampler, Samples
from eblvm.engine.sampling.starts import random_h, training_samples
from eblvm.kernels import philox

if TYPE_CHECKING:
    from eblvm.engine.runs.saved import SavedRun

TARGETS = ("marginal", "given-h", "interpolation")
FRAMES = 10  # pictures along an interpolation
CHUNK = 500  # images per pass


class GeneratorSampler(Sampler):
    """Images [n, C, S, S] in [0, 1].

    marginal: G(h), h ~ N(0, I). given-h: G(h), h the posterior means of training data. interpolation: `count` rows of
    FRAMES images, h on the line between the posterior means of two training samples.
    """

    kind = "generator"
    automatic = quick = True

    target: str | None = option(None, f"{', '.join(TARGETS)}; none: marginal")

    def suits(self, run: SavedRun) -> str:
        model = run.config.model
        return "" if model.generates else f"model {model.kind!r} has no generator; remove --sampler"

    @property
    def work(self) -> str:
        return ", one pass of the generator each"

    def draw(self, run: SavedRun, model: str, count: int, seed: int, first: int, total: int) -> Samples:
        target = self.target or "marginal"
        if target not in TARGETS:
            raise unknown("kind", target, list(TARGETS))
        method, nets, state = run.config.method, run.nets, run.state(model)
        with torch.no_grad():
            if target == "marginal":
                h = random_h(run, philox.Key(seed, 0), count, first)
            else:
                each, known = 2 if target == "interpolation" else 1, len(run.dataset.train)
                if each * (first + count) > known:
                    needed = each * count
                    raise UserError(f"got a count of {count}, which needs {needed} of the {known} training samples")
                h = method.encode(nets, state, training_samples(run, each * count, seed, each * first))
            if target == "interpolation":
                fraction = torch.linspace(0, 1, FRAMES, dtype=h.dtype, device=h.device).view(1, FRAMES, 1)
                h = torch.lerp(h[0::2, None], h[1::2, None], fraction).flatten(0, 1)
            return Samples(torch.cat([method.decode(nets, state, chunk) for chunk in h.split(CHUNK)]))
