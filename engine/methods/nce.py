"""Noise-contrastive estimation (Gutmann & Hyvarinen 2010) and its variational form for latent variables, VNCE
(Rhodes & Gutmann 2019). The noise is a Gaussian with the training data's mean and standard deviation, or N(0, I) as in
the released programs, as many noise points as data points. theta gains `log_z`, the log normaliser that NCE learns."""

import math
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import softplus

from eblvm.engine.autodiff import collectives
from eblvm.engine.autodiff.derivatives import grad
from eblvm.engine.methods.types import Info, Noise, Rates, State
from eblvm.engine.nets.base import Energy, call
from eblvm.engine.nets.posteriors import Bernoulli
from eblvm.engine.optim.optimizers import Optimizer
from eblvm.engine.types import Params
from eblvm.kernels import philox
from eblvm.kernels.philox import Key, Purpose, purpose


@dataclass(frozen=True)
class GaussianNoise:
    mean: Tensor
    std: Tensor

    @classmethod
    def fitted(cls, v: Tensor) -> "GaussianNoise":
        return cls(v.mean(0), v.std(0).clamp_min(1e-3))

    @classmethod
    def of(cls, contrast: str, v: Tensor) -> "GaussianNoise":
        return cls.fitted(v) if contrast == "fitted" else cls(torch.zeros_like(v[0]), torch.ones_like(v[0]))

    def at(self, normal: Tensor) -> Tensor:
        return self.mean + self.std * normal

    def log_prob(self, v: Tensor) -> Tensor:
        z = (v - self.mean) / self.std
        return -(0.5 * z.square() + torch.log(self.std) + 0.5 * math.log(2 * math.pi)).sum(-1)


def _split(theta: Params) -> tuple[Params, Tensor]:
    return {k: p for k, p in theta.items() if k != "log_z"}, theta["log_z"]


@dataclass(frozen=True)
class NceObjective:
    """J = E_data softplus(-G(v)) + E_noise softplus(G(y)),  G(v) = -F(v) - log_z - log p_noise(v)."""

    energy: Energy
    theta_optimizer: Optimizer
    contrast: GaussianNoise

    def init(self, key: Key, v: Tensor) -> State:
        theta = self.energy.initial(key)
        theta["log_z"] = torch.zeros_like(theta["log_sigma"][..., 0])
        return State(theta, {}, self.theta_optimizer.init(theta), (), {}, {})

    def draw(self, key: Key, v: Tensor, first: int = 0, total: int | None = None) -> Noise:
        count, size = v.shape[-2:]
        kwargs: dict[str, Any] = {"first": first, "dtype": v.dtype, "device": v.device}
        return {"contrast": philox.normal(key, purpose(Purpose.CONTRAST), count, (size,), **kwargs)}

    def _loss(self, theta: Params, v: Tensor, noise: Noise) -> Tensor:
        parameters, log_z = _split(theta)

        def log_ratio(x: Tensor) -> Tensor:
            return -call(self.energy, parameters, "free_energy", x) - log_z - self.contrast.log_prob(x)

        return softplus(-log_ratio(v)).mean() + softplus(log_ratio(self.contrast.at(noise["contrast"]))).mean()

    def gradient(self, state: State, v: Tensor, noise: Noise, rates: Rates) -> tuple[Params, State, Info]:
        def upper(theta: Params) -> tuple[Tensor, Tensor]:
            loss = self._loss(theta, v, noise)
            return loss, loss.detach()

        gradient, loss = grad(upper, state.theta)
        return gradient, state, {"loss": loss}

    def validation(self, state: State, v: Tensor, noise: Noise) -> Tensor:
        return self._loss(state.theta, v, noise)


@dataclass(frozen=True)
class VnceObjective:
    """NCE with q(h|v) in the place of the free energy: on data the lower bound log p~(v,h) - log q(h|v) at h ~ q,
    on noise the importance-weighted mean over L samples. q takes K steps on the bound (relaxed h) per theta step;
    theta's gradient uses h in {0, 1}, so that the importance weights are those of the model."""

    energy: Energy
    posterior: Bernoulli
    theta_optimizer: Optimizer
    lower_optimizer: Optimizer
    contrast: GaussianNoise
    K: int
    latent_samples: int

    def init(self, key: Key, v: Tensor) -> State:
        state = NceObjective(self.energy, self.theta_optimizer, self.contrast).init(key, v)
        phi = self.posterior.initial(key)
        return state._replace(phi=phi, phi_opt=self.lower_optimizer.init(phi))

    def draw(self, key: Key, v: Tensor, first: int = 0, total: int | None = None) -> Noise:
        noise = NceObjective(self.energy, self.theta_optimizer, self.contrast).draw(key, v, first)
        kwargs: dict[str, Any] = {"first": first, "dtype": v.dtype, "device": v.device}
        count, shape = v.shape[-2], (self.latent_samples, self.posterior.latent)
        noise["latent"] = [
            philox.logistic(key, purpose(Purpose.LATENT, i), count, shape, **kwargs).movedim(-2, -3)
            for i in range(self.K + 2)
        ]
        return noise

    def _log_weight(self, theta: Params, phi: Params, v: Tensor, logistic: Tensor, relaxed: bool) -> Tensor:
        """log p~(v, h) - log q(h|v) - log p_noise(v) at h ~ q(h|v), one value a sample of h [L, B]."""
        parameters, log_z = _split(theta)
        p = call(self.posterior, phi, "params", v)
        h = self.posterior.rsample(p, logistic) if relaxed else self.posterior.sample(p, logistic)
        energy = call(self.energy, parameters, "energy", v, h)
        return -energy - log_z - self.posterior.log_prob(p, h) - self.contrast.log_prob(v)

    def _loss(self, theta: Params, phi: Params, v: Tensor, noise: Noise) -> Tensor:
        on_data, on_noise = noise["latent"][-2:]
        y = self.contrast.at(noise["contrast"])
        bound = softplus(-self._log_weight(theta, phi, v, on_data, relaxed=False)).mean()
        evidence = self._log_weight(theta, phi, y, on_noise, relaxed=False).logsumexp(0) - math.log(self.latent_samples)
        return bound + softplus(evidence).mean()

    def gradient(self, state: State, v: Tensor, noise: Noise, rates: Rates) -> tuple[Params, State, Info]:
        phi, phi_opt = state.phi, state.phi_opt

        def lower(logistic: Tensor, p: Params) -> tuple[Tensor, Tensor]:
            loss = softplus(-self._log_weight(state.theta, p, v, logistic, relaxed=True)).mean()
            return loss, loss.detach()

        info: Info = {}
        for logistic in noise["latent"][: self.K]:
            gradient, info["lower"] = grad(partial(lower, logistic), phi)
            phi, phi_opt = self.lower_optimizer.step(phi, collectives.mean(gradient), phi_opt, rates["phi"])

        def upper(theta: Params) -> tuple[Tensor, Tensor]:
            loss = self._loss(theta, phi, v, noise)
            return loss, loss.detach()

        gradient, info["loss"] = grad(upper, state.theta)
        return gradient, state._replace(phi=phi, phi_opt=phi_opt), info

    def validation(self, state: State, v: Tensor, noise: Noise) -> Tensor:
        return self._loss(state.theta, state.phi, v, noise)
