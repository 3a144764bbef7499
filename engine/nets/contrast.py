"""The model of noise-contrastive estimation: an energy, its log normaliser, and the noise it contrasts with."""

from __future__ import annotations

import math
from typing import Self

import torch
from torch import Tensor

from eblvm.engine.nets.base import Energy
from eblvm.engine.nets.grbm import GRBM
from eblvm.engine.types import Params
from eblvm.kernels.philox import Key


class Contrast(Energy):
    """A GRBM, next to noise N(mean, std^2). theta is the GRBM's, and `log_z`, the log normaliser that NCE learns."""

    def __init__(self, model: GRBM, mean: Tensor, std: Tensor, log_z: Tensor | float = 0.0):
        super().__init__()
        self.model, self.frozen, self.mean, self.std, self.log_z = model, model.frozen, mean, std, log_z

    @classmethod
    def of(cls, model: GRBM, noise: str, v: Tensor) -> Self:
        """Return a `fitted` noise, with the mean and standard deviation of the data v, or a `standard` one, N(0, I)."""
        if noise == "fitted":
            return cls(model, v.mean(0), v.std(0).clamp_min(1e-3))
        return cls(model, torch.zeros_like(v[0]), torch.ones_like(v[0]))

    def at(self, params: Params) -> Self:
        model = self.model.at({k: p for k, p in params.items() if k != "log_z"})
        return type(self)(model, self.mean, self.std, params["log_z"])

    def initial(self, key: Key) -> Params:
        theta = self.model.initial(key)
        return theta | {"log_z": torch.zeros_like(theta["log_sigma"][..., 0])}

    def noise(self, normal: Tensor) -> Tensor:
        """Return the noise that standard normal numbers make."""
        return self.mean + self.std * normal

    def log_noise(self, v: Tensor) -> Tensor:
        """Return the log density of the noise [B]."""
        z = (v - self.mean) / self.std
        return -(0.5 * z.square() + torch.log(self.std) + 0.5 * math.log(2 * math.pi)).sum(-1)

    def log_ratio(self, v: Tensor) -> Tensor:
        """Return G(v) = -F(v) - log_z - log p_noise(v) [B]."""
        return -self.model.free_energy(v) - self.log_z - self.log_noise(v)
