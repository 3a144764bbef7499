"""Point sets in the plane: each a function of n that gives points [n, 2], and its log density [n] at any points.

    checkerboard     the 2x2 board on the unit square, uniform on the cells [0, 1/2]^2 and [1/2, 1]^2
    checkerboard4    the 4x4 board over [-4, 4]^2, uniform on its 8 dark cells, each 2 wide
    moons            two interleaved half circles of radius 1.5, 0.15 thick
    swissroll        a spiral of one and a half turns from radius 1.3 to 4, 0.15 thick, turns 1.8 apart
    circle           a ring of radius 2, 0.1 thick
    blobs            three Gaussians of standard deviation 0.4 at distance 2 from the origin
    eightgaussians   eight Gaussians of standard deviation 0.2 at distance 2 from the origin

The checkerboards have no scale but their cells: noise of 0.05 suits the first, 0.3 the second. The others lie around
the origin, 0.8 to 2 in standard deviation, and any two branches are at least 0.75 apart: noise of 0.05 to 0.3 keeps
them apart. Thickness is the standard deviation across a curve. The mean of the log density is the best log-likelihood
that a model can have.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from eblvm.kernels import philox
from eblvm.kernels.philox import Key, Purpose, purpose

SEED = 2020  # of the data itself: every run sees the same points
NODES = 512  # of the integral along a curve: at most 0.8 standard deviations apart
CHUNK = 4096  # points whose distances to all nodes are in memory at once


def checkerboard(n: int, first: int = 0) -> Tensor:
    """Points first .. first + n - 1 of the 2x2 board."""
    u = _uniform(0, n, first, 3)
    return (u[:, :2] + torch.floor(2 * u[:, 2:])) / 2


def checkerboard_log_density(v: Tensor) -> Tensor:
    """log 2 on the two cells, -inf elsewhere."""
    inside = ((v >= 0) & (v <= 1)).all(1) & ((v[:, 0] < 0.5) == (v[:, 1] < 0.5))
    return _uniform_log_density(inside, 0.5, v)


def checkerboard4(n: int, first: int = 0) -> Tensor:
    """Points first .. first + n - 1 of the 4x4 board."""
    u = _uniform(0, n, first, 3)
    x = 4 * u[:, 0] - 2
    y = u[:, 1] - 2 * torch.floor(2 * u[:, 2]) + torch.floor(x) % 2
    return torch.stack([2 * x, 2 * y], 1)


def checkerboard4_log_density(v: Tensor) -> Tensor:
    """-log 32 on the eight cells, -inf elsewhere."""
    cell = torch.floor(v / 2)
    return _uniform_log_density((v.abs() <= 4).all(1) & (cell.sum(1) % 2 == 0), 32.0, v)


def _uniform(substep: int, n: int, first: int, width: int) -> Tensor:
    return philox.uniform(Key(SEED, 0), purpose(Purpose.DATA, substep), n, (width,), first=first)


def _uniform_log_density(inside: Tensor, area: float, v: Tensor) -> Tensor:
    return torch.where(inside, v.new_tensor(-math.log(area)), v.new_tensor(-math.inf))


Curve = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class BlurredCurves:
    """v = c + std z with z ~ N(0, I), c = curve(t) for one of the curves, all equally likely, and t uniform in [0, 1].

    `stream` is the number of the set's noise, two streams each.
    """

    stream: int
    std: float
    curves: tuple[Curve, ...]  # t [m] -> c [m, 2]
    nodes: int = NODES

    def __call__(self, n: int, first: int = 0) -> Tensor:
        """Points first .. first + n - 1, [n, 2]."""
        u = _uniform(self.stream, n, first, 2)
        z = philox.normal(Key(SEED, 0), purpose(Purpose.DATA, self.stream + 1), n, (2,), first=first)
        which = (len(self.curves) * u[:, 0]).long()
        centres = torch.stack([curve(u[:, 1]) for curve in self.curves])
        return centres[which, torch.arange(n)] + self.std * z

    def log_density(self, v: Tensor) -> Tensor:
        """log p(v) = log mean over curves of integral_0^1 N(v; curve(t), std^2 I) dt, by Gauss-Legendre quadrature."""
        x, w = (torch.from_numpy(a) for a in np.polynomial.legendre.leggauss(self.nodes))  # on [-1, 1]: w sums to 2
        c = torch.cat([curve((x + 1) / 2) for curve in self.curves])
        log_w = torch.log(w / (2 * len(self.curves))).repeat(len(self.curves))
        distances = (torch.cdist(part, c) for part in v.double().split(CHUNK))
        log_sums = [(log_w - 0.5 * (d / self.std).square()).logsumexp(1) for d in distances]
        return (torch.cat(log_sums) - math.log(2 * math.pi * self.std**2)).to(v.dtype)


def _arc(centre: tuple[float, float], radius: float, start: float, end: float) -> Curve:
    """The arc of a circle between two angles."""

    def curve(t: Tensor) -> Tensor:
        angle = start + (end - start) * t
        return torch.stack([centre[0] + radius * torch.cos(angle), centre[1] + radius * torch.sin(angle)], 1)

    return curve


def _spiral(t: Tensor) -> Tensor:
    """Radius proportional to the angle, from 3/2 pi to 9/2 pi, where it is 4."""
    angle = (1.5 + 3 * t) * math.pi
    return (4 / (4.5 * math.pi)) * angle[:, None] * torch.stack([torch.cos(angle), torch.sin(angle)], 1)


def _points(number: int) -> tuple[Curve, ...]:
    """Places evenly spaced on the circle of radius 2, as curves that stay where they are."""
    angles = [math.pi / 2 + 2 * math.pi * k / number for k in range(number)]
    return tuple(_arc((0.0, 0.0), 2.0, angle, angle) for angle in angles)


moons = BlurredCurves(2, 0.15, (_arc((-0.75, -0.375), 1.5, 0, math.pi), _arc((0.75, 0.375), 1.5, math.pi, 2 * math.pi)))
swissroll = BlurredCurves(4, 0.15, (_spiral,))
circle = BlurredCurves(6, 0.1, (_arc((0.0, 0.0), 2.0, 0, 2 * math.pi),))
blobs = BlurredCurves(8, 0.4, _points(3), nodes=1)
eightgaussians = BlurredCurves(10, 0.2, _points(8), nodes=1)


@dataclass(frozen=True)
class Toy:
    """A set with its log density."""

    points: Callable[..., Tensor]  # (n, first=0) -> [n, 2]
    log_density: Callable[[Tensor], Tensor]  # v [n, 2] -> [n]


TOYS = {
    "checkerboard": Toy(checkerboard, checkerboard_log_density),
    "checkerboard4": Toy(checkerboard4, checkerboard4_log_density),
    "moons": Toy(moons, moons.log_density),
    "swissroll": Toy(swissroll, swissroll.log_density),
    "circle": Toy(circle, circle.log_density),
    "blobs": Toy(blobs, blobs.log_density),
    "eightgaussians": Toy(eightgaussians, eightgaussians.log_density),
}
