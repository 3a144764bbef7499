"""The Gaussian restricted Boltzmann machine (Hinton & Salakhutdinov 2006; BiSM section 5.1).

    E(v, h) = 1/2 sum_d (v_d - b_d)^2 / sigma_d^2 - c.h - v W h,   h in {0, 1}^H,   sigma = exp(log_sigma)

v W h is not divided by sigma, as in the released programs; the papers' text has v W h / sigma.

Shape tags: B batch, D visible units, H latent units.
"""

import math
from typing import Self

import torch
from torch import Tensor, nn
from torch.nn.functional import softplus

from eblvm.engine.errors import UserError
from eblvm.engine.nets.base import Energy
from eblvm.engine.types import Params
from eblvm.kernels import philox
from eblvm.kernels.gibbs import Noise, gibbs
from eblvm.kernels.grbm import grbm
from eblvm.kernels.philox import Key, Purpose
from eblvm.kernels.sliced_hvp import sliced_hvp

MAX_ENUMERATED_H = 20


class GRBM(Energy):
    """features(v) = (1/2 sum (v-b)^2/sigma^2 [B], c + vW [B, H]), head(f, h) = f[0] - f[1].h."""

    def __init__(self, visible: int, latent: int, fixed_sigma: float | None = None):
        super().__init__()
        self.start_sigma = 1.0 if fixed_sigma is None else fixed_sigma
        self.frozen = () if fixed_sigma is None else ("log_sigma",)
        self.visible, self.latent = visible, latent
        self.W = nn.Parameter(torch.empty(visible, latent, device="meta"))
        self.b = nn.Parameter(torch.empty(visible, device="meta"))
        self.c = nn.Parameter(torch.empty(latent, device="meta"))
        self.log_sigma = nn.Parameter(torch.empty(visible, device="meta"))

    def initial(self, key: Key) -> Params:
        """Draw the paper's start: W, b, c uniform in +-1/sqrt(H), sigma = 1 or its fixed value. Leading axes are those
        of key.seed."""
        bound = 1 / math.sqrt(self.latent)

        def uniform(substep: int, *shape: int) -> Tensor:
            u = philox.uniform(key, philox.purpose(Purpose.INIT_THETA, substep), shape[0], shape[1:])
            return (2 * u - 1) * bound

        b = uniform(1, self.visible)
        return {
            "W": uniform(0, self.visible, self.latent),
            "b": b,
            "c": uniform(2, self.latent),
            "log_sigma": torch.full_like(b, math.log(self.start_sigma)),
        }

    def features(self, v_BD: Tensor) -> tuple[Tensor, Tensor]:
        quadratic_B = 0.5 * ((v_BD - self.b) * torch.exp(-self.log_sigma)).square().sum(-1)
        return quadratic_B, v_BD @ self.W + self.c

    def head(self, f: tuple[Tensor, Tensor], h: Tensor) -> Tensor:
        quadratic_B, x_BH = f
        return quadratic_B - (x_BH * h).sum(-1)

    def free_energy(self, v_BD: Tensor) -> Tensor:
        """Return F(v) = 1/2 sum (v-b)^2/sigma^2 - sum_h softplus(c + vW), with p(v) ~ exp(-F(v))."""
        quadratic_B, x_BH = self.features(v_BD)
        return quadratic_B - softplus(x_BH).sum(-1)

    def score(self, v_BD: Tensor) -> Tensor:
        """Return grad_v log p(v) = -(v-b)/sigma^2 + sigmoid(c + vW) W^T."""
        return grbm(v_BD, self.W, self.b, self.c, self.log_sigma)[1]

    def laplacian(self, v_BD: Tensor) -> Tensor:
        """Return tr grad_v^2 log p(v) = -sum 1/sigma^2 + sum_h sigmoid'(c + vW)_h |W_h|^2 per sample."""
        p_BH = torch.sigmoid(v_BD @ self.W + self.c)
        return p_BH * (1 - p_BH) @ self.W.square().sum(0) - torch.exp(-2 * self.log_sigma).sum()

    def sliced(self, v_BD: Tensor, u_MBD: Tensor) -> tuple[Tensor, Tensor]:
        """Return 1/2 |s|^2 [B] of the score s, and u^T (grad_v^2 log p(v)) u [M, B]."""
        return sliced_hvp(v_BD, u_MBD, self.W, self.b, self.c, self.log_sigma)

    def posterior_logits(self, v_BD: Tensor) -> Tensor:
        """Return c + vW, with p(h = 1 | v) = sigmoid(c + vW)."""
        return v_BD @ self.W + self.c

    def linear_posterior(self) -> Params:
        """Return phi of a linear Bernoulli posterior that equals p(h|v), differentiable in theta."""
        return {"net.0.weight": self.W.T, "net.0.bias": self.c}

    def conditional_v(self, h_BH: Tensor) -> tuple[Tensor, Tensor]:
        """Return mean [B, D] and standard deviation [D] of p(v | h) = N(b + sigma^2 W h, sigma^2)."""
        sigma_D = torch.exp(self.log_sigma)
        return self.b + sigma_D.square() * (h_BH @ self.W.T), sigma_D

    def log_z(self) -> Tensor:
        """Enumerate h: log Z = logsumexp_h [c.h + b.Wh + 1/2 |sigma Wh|^2] + sum log sigma + D/2 log 2 pi."""
        if self.latent > MAX_ENUMERATED_H:
            raise UserError(
                f"exact log Z enumerates 2^H states of h, got H={self.latent}, expected H <= {MAX_ENUMERATED_H}; "
                "use AIS instead"
            )
        states = torch.arange(2**self.latent, device=self.W.device)
        log_terms = []
        for chunk in states.split(2**14):
            h = (chunk[:, None] >> torch.arange(self.latent, device=self.W.device) & 1).to(self.W.dtype)
            m = h @ self.W.T
            log_terms.append(h @ self.c + m @ self.b + 0.5 * (m * torch.exp(self.log_sigma)).square().sum(-1))
        return torch.cat(log_terms).logsumexp(0) + self.log_sigma.sum() + 0.5 * self.visible * math.log(2 * math.pi)


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
        return self.mean + self.std * normal

    def log_noise(self, v: Tensor) -> Tensor:
        """Return the log density of the noise [B]."""
        z = (v - self.mean) / self.std
        return -(0.5 * z.square() + torch.log(self.std) + 0.5 * math.log(2 * math.pi)).sum(-1)

    def log_ratio(self, v: Tensor) -> Tensor:
        """Return G(v) = -F(v) - log_z - log p_noise(v) [B]."""
        return -self.model.free_energy(v) - self.log_z - self.log_noise(v)


def sweep(theta: Params, v_BD: Tensor, noise: Noise, sweeps: int | None = None) -> tuple[Tensor, Tensor]:
    """Run Gibbs sweeps of chains at v [B, D], one for each pair of noise; return (v, mean of the last p(v|h))."""
    return gibbs(v_BD, theta["W"], theta["b"], theta["c"], theta["log_sigma"], noise, sweeps)


def require_grbm(energy: Energy, method: str) -> GRBM:
    if not isinstance(energy, GRBM):
        raise UserError(f"method {method!r} needs a GRBM, got {type(energy).__name__}")
    return energy
