"""The 2x2 board on the unit square, uniform on the cells [0, 1/2]^2 and [1/2, 1]^2."""

from __future__ import annotations

import torch

from eblvm.engine.data.sets.points import Points, uniform, uniform_log_density


class Checkerboard(Points):
    kind = "checkerboard"
    mean, std = 0.5, 0.29

    def points(self, n: int, first: int = 0) -> torch.Tensor:
        u = uniform(0, n, first, 3)
        return (u[:, :2] + torch.floor(2 * u[:, 2:])) / 2

    def log_density(self, v: torch.Tensor) -> torch.Tensor:
        """log 2 on the two cells, -inf elsewhere."""
        inside = ((v >= 0) & (v <= 1)).all(1) & ((v[:, 0] < 0.5) == (v[:, 1] < 0.5))
        return uniform_log_density(inside, 0.5, v)
