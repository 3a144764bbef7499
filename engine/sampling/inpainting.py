"""Inpainting: annealed Langevin dynamics of the unknown pixels, and of h, while the known pixels are held."""

from typing import Any

import torch
from torch import Tensor

from eblvm.engine.errors import UserError, unknown
from eblvm.engine.nets.grbm import GRBM
from eblvm.engine.progress import progress
from eblvm.engine.runs.run import SavedRun
from eblvm.engine.sampling import langevin as ld
from eblvm.engine.sampling.run_samples import default_start, latent_units, started
from eblvm.kernels import philox
from eblvm.kernels.philox import Key, Purpose, purpose

KNOWN = ("top", "bottom", "left", "right")
HIDDEN = 0.5  # how unknown pixels are shown


def known_pixels(shape: tuple[int, ...], known: str) -> Tensor:
    """True on the known half of images [C, S, S]."""
    if known not in KNOWN:
        raise unknown("known", known, list(KNOWN))
    _, height, width = shape
    mask = torch.zeros(shape, dtype=torch.bool)
    rows = {"top": slice(height // 2), "bottom": slice(height // 2, None)}.get(known, slice(None))
    columns = {"left": slice(width // 2), "right": slice(width // 2, None)}.get(known, slice(None))
    mask[:, rows, columns] = True
    return mask


def inpaint(
    run: SavedRun, model: str, count: int, steps: int | None, seed: int, known: str = "top", start: str | None = None
) -> Tensor:
    """Pairs [2n, C, S, S] of test images: what is known of one, and one completion by the model.

    h starts at random and is sampled with the unknown pixels: it sees nothing of what is hidden."""
    if run.config.model.generates or isinstance(run.energy, GRBM) or len(run.shape) != 3:
        raise UserError(f"inpainting is for a deep energy of images, got model {run.config.model.kind!r}")
    if count > len(run.dataset.test):
        raise UserError(f"got a count of {count}, expected at most the {len(run.dataset.test)} test images")
    torch.set_num_threads(run.config.running.threads)
    energy, theta, key = run.energy, run.thetas(model)[0], Key(seed, 0)
    truth = run.dataset.floats(run.dataset.test[:count])
    mask = known_pixels(run.shape, known).to(truth.device)
    kwargs: dict[str, Any] = {"dtype": truth.dtype, "device": truth.device}
    v = torch.where(mask, truth, started(run, start or default_start(run), key, count, 0, kwargs))
    x: ld.Position = (v,)
    score = ld.marginal_score(energy, theta)
    if run.config.method.learns_q:
        x = (v, philox.normal(key, purpose(Purpose.SAMPLE_H), count, (latent_units(run),), **kwargs))
        score = ld.joint_score(energy, theta)
    schedule = ld.temperatures() if steps is None else ld.temperatures(steps)
    with progress(len(schedule), "Langevin", "step") as bar:
        x = ld.langevin(score, x, key, schedule, on_step=lambda _: bar.update() and None, held=(mask, truth))
    completed = torch.where(mask, truth, ld.denoised(score, x, run.config.method.blur))
    shown = torch.where(mask, truth, torch.full_like(truth, HIDDEN))
    return torch.stack([shown, completed], 1).flatten(0, 1)
