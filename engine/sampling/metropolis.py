"""Hamiltonian Monte Carlo (Duane et al. 1987; Neal 2011) and MALA (Roberts & Tweedie 1996): chains that keep
p(x) ~ exp(log p~(x)) exactly, for x = (v,), (h,) or (v, h).

    p ~ N(0, I);  `leapfrog` times: p += e/2 s(x), x += e p, p += e/2 s(x);  accept with probability min(1, exp(-dH)),

s = grad log p~ and H = |p|^2/2 - log p~(x). One leapfrog step is MALA: the proposal x + e^2/2 s(x) + e z of Langevin
dynamics, with the rejections that make it exact.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from eblvm.engine.autodiff.derivatives import grad
from eblvm.engine.sampling.langevin import Position
from eblvm.kernels import philox
from eblvm.kernels.philox import Key, Purpose, purpose

LogDensity = Callable[[Position], Tensor]  # of chains [n], up to a constant
ACCEPT = 2**15  # the stream that decides, beyond those of the parts' momenta


class Chains(NamedTuple):
    x: Position  # where the chains end
    accepted: Tensor  # [n], the fraction of each chain's proposals
    log_density: Tensor  # [n, steps], after every step


@torch.no_grad()
def hmc(
    log_density: LogDensity,
    x: Position,
    key: Key,
    steps: int,
    step_size: float,
    leapfrog: int = 10,
    on_step: Callable[[int], None] | None = None,
    first: int = 0,
) -> Chains:
    """`steps` proposals of chains first, first + 1, ...; proposal i uses the noise of step key.step + i."""
    value, slope = value_and_slope(log_density, x)
    accepted, values = torch.zeros_like(value), []
    for i in range(steps):
        at = Key(key.seed, key.step + i)
        momentum = tuple(_normal(at, part, p, first) for part, p in enumerate(x))
        new_x, new_p, new_value, new_slope = x, momentum, value, slope
        for _ in range(leapfrog):
            half = _plus(new_p, new_slope, 0.5 * step_size)
            new_x = _plus(new_x, half, step_size)
            new_value, new_slope = value_and_slope(log_density, new_x)
            new_p = _plus(half, new_slope, 0.5 * step_size)
        gain = (new_value - _kinetic(new_p)) - (value - _kinetic(momentum))
        u = philox.uniform(
            at, purpose(Purpose.LANGEVIN, ACCEPT), len(gain), first=first, dtype=gain.dtype, device=gain.device
        )
        take = torch.log(u) < gain  # False where the proposal's density is NaN
        x, slope = (
            tuple(torch.where(take.view(-1, *[1] * (old.dim() - 1)), new, old) for new, old in zip(a, b, strict=True))
            for a, b in ((new_x, x), (new_slope, slope))
        )
        value = torch.where(take, new_value, value)
        accepted += take
        values.append(value)
        if on_step is not None:
            on_step(i)
    return Chains(x, accepted / max(steps, 1), torch.stack(values, 1) if values else value[:, None][:, :0])


def mala(
    log_density: LogDensity,
    x: Position,
    key: Key,
    steps: int,
    step_size: float,
    on_step: Callable[[int], None] | None = None,
    first: int = 0,
) -> Chains:
    """Langevin dynamics with Metropolis's rejections."""
    return hmc(log_density, x, key, steps, step_size, 1, on_step, first)


def value_and_slope(log_density: LogDensity, x: Position) -> tuple[Tensor, Position]:
    """log p~ [n] and its gradient for every part of x."""

    def total(y: Position) -> tuple[Tensor, Tensor]:
        value = log_density(y)
        return value.sum(), value.detach()

    slope, value = grad(total, x)
    return value, slope


def _normal(key: Key, part: int, like: Tensor, first: int) -> Tensor:
    at: dict[str, Any] = {"first": first, "dtype": like.dtype, "device": like.device}
    return philox.normal(key, purpose(Purpose.LANGEVIN, part), len(like), tuple(like.shape[1:]), **at)


def _plus(x: Position, y: Position, factor: float) -> Position:
    return tuple(a + factor * b for a, b in zip(x, y, strict=True))


def _kinetic(p: Position) -> Tensor:
    """|p|^2 / 2 over all parts, [n]."""
    return torch.stack([0.5 * part.flatten(1).square().sum(1) for part in p]).sum(0)
