"""Points along blurred curves: moons, swissroll, circle, and blobs and eightgaussians, whose curves are points.

v = c + thickness z,   z ~ N(0, I),   c = curve(t) of one of the curves, all equally likely, t uniform in [0, 1]
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import ClassVar, TypeAlias

import numpy as np
import torch

from eblvm.engine.data.sets.points import SEED, Points, uniform
from eblvm.kernels import philox

Curve: TypeAlias = "Callable[[torch.Tensor], torch.Tensor]"  # t [m] -> c [m, 2]
NODES = 512  # of the integral along a curve: at most 0.8 standard deviations apart
CHUNK = 4096  # points whose distances to all nodes are in memory at once


class BlurredCurves(Points):
    """The contract. `stream` is the number of the set's noise, two streams each."""

    stream: ClassVar[int]
    thickness: ClassVar[float]
    curves: ClassVar[tuple[Curve, ...]]
    nodes: ClassVar[int] = NODES

    def points(self, n: int, first: int = 0) -> torch.Tensor:
        u = uniform(self.stream, n, first, 2)
        purpose = philox.purpose(philox.Purpose.DATA, self.stream + 1)
        z = philox.normal(philox.Key(SEED, 0), purpose, n, (2,), first=first)
        which = (len(self.curves) * u[:, 0]).long()
        centres = torch.stack([curve(u[:, 1]) for curve in self.curves])
        return centres[which, torch.arange(n)] + self.thickness * z

    def log_density(self, v: torch.Tensor) -> torch.Tensor:
        """log p(v) = log mean over curves of integral_0^1 N(v; curve(t), thickness^2 I) dt (Gauss-Legendre)."""
        x, w = (torch.from_numpy(a) for a in np.polynomial.legendre.leggauss(self.nodes))  # on [-1, 1]: w sums to 2
        c = torch.cat([curve((x + 1) / 2) for curve in self.curves])
        log_w = torch.log(w / (2 * len(self.curves))).repeat(len(self.curves))
        distances = (torch.cdist(chunk, c) for chunk in v.double().split(CHUNK))
        log_sums = [(log_w - 0.5 * (d / self.thickness).square()).logsumexp(1) for d in distances]
        return (torch.cat(log_sums) - math.log(2 * math.pi * self.thickness**2)).to(v.dtype)


def arc(centre: tuple[float, float], radius: float, start: float, end: float) -> Curve:
    """The arc of a circle between two angles."""

    def curve(t: torch.Tensor) -> torch.Tensor:
        angle = start + (end - start) * t
        return torch.stack([centre[0] + radius * torch.cos(angle), centre[1] + radius * torch.sin(angle)], 1)

    return curve


def spiral(t: torch.Tensor) -> torch.Tensor:
    """Radius proportional to the angle, from 3/2 pi to 9/2 pi, where it is 4."""
    angle = (1.5 + 3 * t) * math.pi
    return (4 / (4.5 * math.pi)) * angle[:, None] * torch.stack([torch.cos(angle), torch.sin(angle)], 1)


def places(number: int) -> tuple[Curve, ...]:
    """Places evenly spaced on the circle of radius 2, as curves that stay where they are."""
    angles = [math.pi / 2 + 2 * math.pi * k / number for k in range(number)]
    return tuple(arc((0.0, 0.0), 2.0, angle, angle) for angle in angles)


class Moons(BlurredCurves):
    kind = "moons"
    mean, std = 0.0, 1.08
    stream, thickness = 2, 0.15
    curves = (arc((-0.75, -0.375), 1.5, 0, math.pi), arc((0.75, 0.375), 1.5, math.pi, 2 * math.pi))


class SwissRoll(BlurredCurves):
    kind = "swissroll"
    mean, std = 0.27, 1.95
    stream, thickness = 4, 0.15
    curves = (spiral,)


class Circle(BlurredCurves):
    kind = "circle"
    mean, std = 0.0, 1.42
    stream, thickness = 6, 0.1
    curves = (arc((0.0, 0.0), 2.0, 0, 2 * math.pi),)


class Blobs(BlurredCurves):
    kind = "blobs"
    mean, std = 0.0, 1.47
    stream, thickness, nodes = 8, 0.4, 1
    curves = places(3)


class EightGaussians(BlurredCurves):
    kind = "eightgaussians"
    mean, std = 0.0, 1.43
    stream, thickness, nodes = 10, 0.2, 1
    curves = places(8)
