"""Annealed Langevin dynamics (Li et al. 2019, BiSM appendix B.2): x' = x + e^2/2 s(x) + e sqrt(T) z, z ~ N(0, 1).

A model trained by multiscale denoising has the score of the data blurred by sigma0, also far away from the data: at
temperature T its chains are blurred by sigma0 sqrt(T). They start hot, where they mix, and end cold, on the data.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias

import torch

from eblvm.engine.autodiff import derivatives
from eblvm.engine.errors import UserError, unknown
from eblvm.engine.options import option
from eblvm.engine.progress import progress
from eblvm.engine.sampling.base import MOST_STEPS, Sampler, Samples
from eblvm.engine.sampling.starts import START_HELP, STARTS, posterior_means, random_h, started
from eblvm.engine.types import Params
from eblvm.kernels import philox

if TYPE_CHECKING:
    from eblvm.engine.nets.base import Energy
    from eblvm.engine.runs.saved import SavedRun

Coordinates: TypeAlias = "tuple[torch.Tensor, ...]"  # (v,) or (v, h)
Score: TypeAlias = "Callable[[Coordinates], Coordinates]"

STEP_SIZE = 0.02
HOTTEST = 100.0
HOLD, ANNEAL, COOL = 500, 2000, 200  # steps at the hottest, from there to 1, from 1 to 0
STEPS = HOLD + ANNEAL + COOL
TARGETS = ("marginal", "joint", "given-h", "conditional", "interpolation")
CONDITIONS = 4  # values of h in a conditional grid
FRAMES = 10  # pictures along an interpolation
FRAME_STEPS = 200  # Langevin steps at temperature 1 between two of them


class AnnealedLangevin(Sampler):
    """Chains of a deep energy, denoised at the end.

    marginal: p(v) of a fully visible model. joint: p(v, h). given-h: p(v|h), h the posterior means of training data.
    conditional: the same with CONDITIONS values of h, equally many of the total each. interpolation: `count` chains
    of p(v|h) that go on while h moves from one training sample's posterior mean to another's, FRAMES pictures each.
    """

    kind = "langevin"
    automatic = True

    steps: int = option(STEPS, "Langevin steps", low=0, high=MOST_STEPS)
    target: str | None = option(None, f"{', '.join(TARGETS)}; none: given-h, of a fully visible model marginal")
    start: str | None = option(None, START_HELP, choices=STARTS)

    def suits(self, run: SavedRun) -> str:
        if not run.config.model.generates and not run.is_grbm:
            return ""
        return f"annealed Langevin dynamics is for a deep energy, got model {run.config.model.kind!r}; remove --sampler"

    @property
    def work(self) -> str:
        return f" of {self.steps} Langevin steps, each a pass of the network and its gradient"

    def draw(self, run: SavedRun, model: str, count: int, seed: int, first: int, total: int) -> Samples:
        target, theta, energy = self._target(run), run.thetas(model)[0], run.energy
        key, schedule = philox.Key(seed, 0), temperatures(self.steps)
        v, blur = started(run, self.start, key, count, first), run.config.method.blur
        if target == "marginal":
            score = marginal_score(energy, theta)
            return Samples(denoised(score, shown(score, (v,), key, schedule, first=first), blur))
        if target == "joint":
            score = joint_score(energy, theta)
            x = shown(score, (v, random_h(run, key, count, first)), key, schedule, first=first)
            return Samples(denoised(score, x, blur))
        if target == "conditional":
            of_each = -(-total // CONDITIONS)
            h = posterior_means(run, model, CONDITIONS, seed).repeat_interleave(of_each, 0)[first : first + count]
        else:
            h = posterior_means(run, model, count, seed, first)
        score = conditional_score(energy, theta, h)
        x = shown(score, (v,), key, schedule, first=first)
        if target != "interpolation":
            return Samples(denoised(score, x, blur))
        goal, frames = posterior_means(run, model, count, seed + 1, first), []
        for frame in range(FRAMES):
            score = conditional_score(energy, theta, torch.lerp(h, goal, frame / (FRAMES - 1)))
            here = philox.Key(seed, len(schedule) + frame * FRAME_STEPS)
            x = shown(score, x, here, [1.0] * FRAME_STEPS, first=first)
            frames.append(denoised(score, x, blur))
        return Samples(torch.stack(frames, 1).flatten(0, 1))

    def _target(self, run: SavedRun) -> str:
        latent = run.config.method.learns_q
        target = self.target or ("given-h" if latent else "marginal")
        if target not in TARGETS:
            raise unknown("kind", target, list(TARGETS))
        if latent == (target == "marginal"):
            expected = "one of " + ", ".join(TARGETS[1:]) if latent else "marginal"
            raise UserError(f"a model trained by {run.config.method.kind!r} has no kind {target!r}; use {expected}")
        return target


def temperatures(steps: int = STEPS) -> list[float]:
    """The published schedule, or one of the same shape in `steps` steps: geometric to 1, then linear to 0."""
    cool, anneal = (round(part * (steps / STEPS)) for part in (COOL, ANNEAL))
    falling = [HOTTEST ** (1 - i / anneal) for i in range(anneal)]
    return [HOTTEST] * (steps - anneal - cool) + falling + [1 - (i + 1) / cool for i in range(cool)]


def langevin(
    score: Score,
    x: Coordinates,
    key: philox.Key,
    schedule: list[float],
    step_size: float = STEP_SIZE,
    on_step: Callable[[int], object] | None = None,
    first: int = 0,
    held: tuple[torch.Tensor, torch.Tensor] | None = None,
) -> Coordinates:
    """One step for every temperature of the schedule; step i uses the noise of step key.step + i.

    `first` is the global index of the first chain: a chain does not depend on the others. `held` is a mask of
    the entries of v that keep a value, and the values."""
    with torch.no_grad():
        for i, temperature in enumerate(schedule):
            at, moved = philox.Key(key.seed, key.step + i), []
            for part, (position, slope) in enumerate(zip(x, score(x), strict=True)):
                z = normal_like(position, at, part, first)
                moved.append(position + 0.5 * step_size**2 * slope + step_size * temperature**0.5 * z)
            if held is not None:
                moved[0] = torch.where(*held, moved[0])
            x = tuple(moved)
            if on_step is not None:
                on_step(i)
    return x


def normal_like(position: torch.Tensor, key: philox.Key, part: int, first: int) -> torch.Tensor:
    """z ~ N(0, 1) for a part of the chains first, first + 1, ..., from the part's own stream."""
    like: dict[str, Any] = {"first": first, "dtype": position.dtype, "device": position.device}
    purpose = philox.purpose(philox.Purpose.LANGEVIN, part)
    return philox.normal(key, purpose, len(position), tuple(position.shape[1:]), **like)


def joint_score(energy: Energy, theta: Params) -> Score:
    """grad of log p(v, h), for x = (v, h)."""
    energy = energy.at(theta)
    return lambda x: derivatives.grad(lambda y: (-energy.energy(*y).sum(), ()), x)[0]


def conditional_score(energy: Energy, theta: Params, h: torch.Tensor) -> Score:
    """grad_v log p(v | h), for x = (v,)."""
    energy = energy.at(theta)
    return lambda x: derivatives.grad(lambda y: (-energy.energy(y[0], h).sum(), ()), x)[0]


def marginal_score(energy: Energy, theta: Params) -> Score:
    """grad log p(v) of an energy with a free energy, for x = (v,)."""
    marginal: Any = energy.at(theta)
    return lambda x: derivatives.grad(lambda y: (-marginal.free_energy(*y).sum(), ()), x)[0]


def denoised(score: Score, x: Coordinates, sigma0: float) -> torch.Tensor:
    """v + sigma0^2 s(v): the mean of the data given the blurred sample."""
    with torch.no_grad():
        return x[0] + sigma0**2 * score(x)[0]


def shown(score: Score, x: Coordinates, key: philox.Key, schedule: list[float], **options: Any) -> Coordinates:
    """`langevin` with a bar of its progress."""
    with progress(len(schedule), "Langevin", "step") as bar:
        return langevin(score, x, key, schedule, on_step=lambda _: bar.update(), **options)
