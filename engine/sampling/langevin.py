"""Annealed Langevin dynamics (Li et al. 2019, BiSM appendix B.2): x' = x + e^2/2 s(x) + e sqrt(T) z, z ~ N(0, 1).

A model trained by multiscale denoising has the score of the data blurred by sigma0, also far away from the data: at
temperature T its chains are blurred by sigma0 sqrt(T). They start hot, where they mix, and end cold, on the data.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from eblvm.engine.autodiff.derivatives import grad
from eblvm.engine.nets.base import Energy
from eblvm.engine.types import Params
from eblvm.kernels import philox
from eblvm.kernels.philox import Key, Purpose, purpose

Position = tuple[Tensor, ...]  # (v,) or (v, h)
Score = Callable[[Position], Position]
STEP_SIZE = 0.02
HOTTEST = 100.0
HOLD, ANNEAL, COOL = 500, 2000, 200  # steps at the hottest, from there to 1, from 1 to 0


def temperatures(steps: int = HOLD + ANNEAL + COOL) -> list[float]:
    """The published schedule, or one of the same shape in `steps` steps: geometric to 1, then linear to 0."""
    scale = steps / (HOLD + ANNEAL + COOL)
    cool = round(COOL * scale)
    anneal = round(ANNEAL * scale)
    falling = [HOTTEST ** (1 - i / anneal) for i in range(anneal)]
    return [HOTTEST] * (steps - anneal - cool) + falling + [1 - (i + 1) / cool for i in range(cool)]


def normal_start(key: Key, count: int, shape: tuple[int, ...], first: int = 0, **kwargs: Any) -> Tensor:
    """Where the published chains start: v = 1/2 + z with z ~ N(0, 1), [count, *shape], for images in [0, 1].

    `kwargs` are dtype and device."""
    return 0.5 + philox.normal(key, purpose(Purpose.SAMPLE_V), count, shape, first=first, **kwargs)


@torch.no_grad()
def langevin(
    score: Score,
    x: Position,
    key: Key,
    schedule: list[float],
    step_size: float = STEP_SIZE,
    on_step: Callable[[int], None] | None = None,
    first: int = 0,
    held: tuple[Tensor, Tensor] | None = None,
) -> Position:
    """One step for every temperature of the schedule; step i uses the noise of step key.step + i.

    `first` is the global index of the first chain: chains do not depend on which others run beside them. `held` says
    which entries of v keep a value, and which value."""
    for i, temperature in enumerate(schedule):
        slopes = score(x)
        moved = []
        for part, (position, slope) in enumerate(zip(x, slopes, strict=True)):
            z = philox.normal(
                Key(key.seed, key.step + i),
                purpose(Purpose.LANGEVIN, part),
                len(position),
                tuple(position.shape[1:]),
                first=first,
                dtype=position.dtype,
                device=position.device,
            )
            moved.append(position + 0.5 * step_size**2 * slope + step_size * temperature**0.5 * z)
        if held is not None:
            moved[0] = torch.where(*held, moved[0])
        x = tuple(moved)
        if on_step is not None:
            on_step(i)
    return x


def joint_score(energy: Energy, theta: Params) -> Score:
    """grad of log p(v, h), for x = (v, h)."""
    energy = energy.at(theta)
    return lambda x: grad(lambda y: (-energy.energy(*y).sum(), ()), x)[0]


def conditional_score(energy: Energy, theta: Params, h: Tensor) -> Score:
    """grad_v log p(v | h), for x = (v,)."""
    energy = energy.at(theta)
    return lambda x: grad(lambda y: (-energy.energy(y[0], h).sum(), ()), x)[0]


def marginal_score(energy: Energy, theta: Params) -> Score:
    """grad log p(v) of an energy with a free energy, for x = (v,)."""
    marginal: Any = energy.at(theta)
    return lambda x: grad(lambda y: (-marginal.free_energy(*y).sum(), ()), x)[0]


@torch.no_grad()
def denoised(score: Score, x: Position, sigma0: float) -> Tensor:
    """v + sigma0^2 s(v): the mean of the data given the blurred sample."""
    return x[0] + sigma0**2 * score(x)[0]
