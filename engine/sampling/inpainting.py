"""Inpainting: annealed Langevin dynamics of the unknown pixels, and of h, while the known pixels keep their values."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from eblvm.engine.errors import UserError
from eblvm.engine.options import option
from eblvm.engine.sampling import langevin as ld
from eblvm.engine.sampling.base import MOST_STEPS, Sampler, Samples
from eblvm.engine.sampling.starts import START_HELP, STARTS, random_h, started
from eblvm.kernels import philox

if TYPE_CHECKING:
    from eblvm.engine.runs.saved import SavedRun

KNOWN = ("top", "bottom", "left", "right")
HIDDEN = 0.5  # how unknown pixels are shown


class Inpainting(Sampler):
    """Pairs [2n, C, S, S] of test images: what is known of one, and one completion by the model.

    h starts at random and is sampled with the unknown pixels: it sees nothing of what is hidden."""

    kind = "inpainting"
    divides = False

    steps: int = option(ld.STEPS, "Langevin steps", low=0, high=MOST_STEPS)
    start: str | None = option(None, START_HELP, choices=STARTS)
    known: str = option("top", "half of a test image that is known", choices=KNOWN)

    def suits(self, run: SavedRun) -> str:
        if not run.config.model.generates and not run.is_grbm and len(run.shape) == 3:
            return ""
        return f"inpainting is for a deep energy of images, got model {run.config.model.kind!r}; use another --kind"

    @property
    def work(self) -> str:
        return f" of {self.steps} Langevin steps, each a pass of the network and its gradient"

    def draw(self, run: SavedRun, model: str, count: int, seed: int, first: int, total: int) -> Samples:
        test = run.dataset.test
        if first + count > len(test):
            raise UserError(f"got a count of {first + count}, expected at most the {len(test)} test images")
        energy, theta, key = run.energy, run.thetas(model)[0], philox.Key(seed, 0)
        truth = run.dataset.floats(test[first : first + count])
        mask = known_pixels(run.shape, self.known).to(truth.device)
        v = torch.where(mask, truth, started(run, self.start, key, count, first))
        x: ld.Coordinates = (v,)
        score = ld.marginal_score(energy, theta)
        if run.config.method.learns_q:
            x, score = (v, random_h(run, key, count, first)), ld.joint_score(energy, theta)
        x = ld.shown(score, x, key, ld.temperatures(self.steps), first=first, held=(mask, truth))
        completed = torch.where(mask, truth, ld.denoised(score, x, run.config.method.blur))
        shown = torch.where(mask, truth, torch.full_like(truth, HIDDEN))
        return Samples(torch.stack([shown, completed], 1).flatten(0, 1))


def known_pixels(shape: tuple[int, ...], known: str) -> torch.Tensor:
    """True on the known half of images [C, S, S]."""
    _, height, width = shape
    mask = torch.zeros(shape, dtype=torch.bool)
    rows = {"top": slice(height // 2), "bottom": slice(height // 2, None)}.get(known, slice(None))
    columns = {"left": slice(width // 2), "right": slice(width // 2, None)}.get(known, slice(None))
    mask[:, rows, columns] = True
    return mask
