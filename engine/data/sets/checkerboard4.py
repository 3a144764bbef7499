"""The 4x4 board over [-4, 4]^2, uniform on its 8 dark cells, each 2 wide."""

from __future__ import annotations

import torch

from eblvm.engine.data.sets.points import Points, uniform, uniform_log_density


class Checkerboard4(Points):
    kind = "checkerboard4"
    mean, std = 0.0, 2.31

    def points(self, n: int, first: int = 0) -> torch.Tensor:
        u = uniform(0, n, first, 3)
        x = 4 * u[:, 0] - 2
        y = u[:, 1] - 2 * torch.floor(2 * u[:, 2]) + torch.floor(x) % 2
        return torch.stack([2 * x, 2 * y], 1)

    def log_density(self, v: torch.Tensor) -> torch.Tensor:
        """-log 32 on the eight cells, -inf elsewhere."""
        cell = torch.floor(v / 2)
        return uniform_log_density((v.abs() <= 4).all(1) & (cell.sum(1) % 2 == 0), 32.0, v)
