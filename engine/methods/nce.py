"""Noise-contrastive estimation (Gutmann & Hyvarinen 2010) and its variational form for latent variables, VNCE
(Rhodes & Gutmann 2019), with as many noise points as data points."""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING, cast

import torch

from eblvm.engine import autodiff
from eblvm.engine import nets as modules
from eblvm.engine.autodiff import collectives
from eblvm.engine.errors import UserError
from eblvm.engine.methods.base import Info, Method, Nets, Noise, Rates, Rows, State
from eblvm.engine.models import posteriors
from eblvm.engine.models.posteriors import Linear, PosteriorOptions
from eblvm.engine.optim.base import Optimizer
from eblvm.engine.options import option, slot
from eblvm.engine.types import Params
from eblvm.kernels import philox

if TYPE_CHECKING:
    from torch import Tensor

    from eblvm.engine.config import Config
    from eblvm.engine.nets import Contrast, Energy, Posterior

CONTRAST_HELP = "the noise: a Gaussian with the data's means and standard deviations, or N(0, I)"


class Nce(Method):
    """J = E_data softplus(-G(v)) + E_noise softplus(G(y)),  G(v) = -F(v) - log_z - log p_noise(v)."""

    kind = "nce"
    needs_conditionals = True

    contrast: str = option("fitted", CONTRAST_HELP, choices=("fitted", "standard"))

    def nets(
        self, config: Config, data: Tensor, energy: Energy | None = None, posterior: Posterior | None = None
    ) -> Nets:
        grbm = modules.require_grbm(energy or config.model.energy(tuple(data.shape[1:]), self.learns_q), self.kind)
        return Nets(modules.Contrast.of(grbm, self.contrast, data))

    def draw(self, nets: Nets, key: philox.Key, rows: Rows) -> Noise:
        """Return "contrast", the noise points before they are scaled [B, D]."""
        purpose = philox.purpose(philox.Purpose.CONTRAST)
        return {"contrast": philox.normal(key, purpose, rows.samples, rows.shape, **rows.place)}

    def _gradient(
        self, nets: Nets, state: State, v: Tensor, noise: Noise, rates: Rates, finish: autodiff.Finish | None = None
    ) -> tuple[Params, State, Info]:
        gradient, loss = autodiff.grad(partial(self._loss, nets, v, noise), state.theta.params)
        return gradient, state, {"loss": loss}

    def _loss(self, nets: Nets, v: Tensor, noise: Noise, theta: Params) -> tuple[Tensor, Tensor]:
        """Return J, and J as it is logged."""
        softplus, contrast = torch.nn.functional.softplus, contrast_of(nets).at(theta)
        on_noise = contrast.log_ratio(contrast.noise(noise["contrast"]))
        loss = softplus(-contrast.log_ratio(v)).mean() + softplus(on_noise).mean()
        return loss, loss.detach()

    def validation(self, nets: Nets, state: State, v: Tensor, noise: Noise, size: int | None = None) -> Tensor:
        return self._loss(nets, v, noise, state.theta.params)[1]


def contrast_of(nets: Nets) -> Contrast:
    return cast("Contrast", nets.energy)


class Vnce(Method):
    """NCE with q(h|v) in the place of the free energy: on data the lower bound log p~(v, h) - log q(h|v) at h ~ q, on
    noise the importance-weighted mean over samples of h. q makes K steps on the bound (relaxed h) per theta step;
    theta's gradient uses h in {0, 1}, so that the importance weights are those of the model."""

    kind = "vnce"
    needs_conditionals = learns_q = True

    K: int = option(5, "real lower steps on q per minibatch", low=0)
    lower_lr: float | None = option(None, "Adam's learning rate for phi; none: that of theta", above=0)
    latent_samples: int = option(1, "samples of h in the importance average", low=1)
    contrast: str = option("fitted", CONTRAST_HELP, choices=("fitted", "standard"))
    posterior: PosteriorOptions = slot(posteriors.LEARNED, "net of q(h|v)", Linear())

    def rates(self) -> dict[str, float | None]:
        return {"phi": self.lower_lr}

    def nets(
        self, config: Config, data: Tensor, energy: Energy | None = None, posterior: Posterior | None = None
    ) -> Nets:
        shape = tuple(data.shape[1:])
        grbm = modules.require_grbm(energy or config.model.energy(shape, self.learns_q), self.kind)
        q = posterior or self.posterior.build(shape, config.model)
        if not isinstance(q, modules.Bernoulli):
            raise UserError(f"method 'vnce' sums over binary h, got the posterior {type(q).__name__}")
        contrast = modules.Contrast.of(grbm, self.contrast, data)
        return Nets(contrast, q, phi_optimizer=config.optimisation.phi_optimizer())

    def init(self, nets: Nets, key: philox.Key, v: Tensor, optimizer: Optimizer) -> State:
        phi = nets.phi_optimizer.init(nets.posterior.initial(key))
        return super().init(nets, key, v, optimizer)._replace(phi=phi)

    def draw(self, nets: Nets, key: philox.Key, rows: Rows) -> Noise:
        """Add "latent", noise of samples of h [B, S, H] for the steps on q, for the data and for the noise."""
        shape, purpose = (self.latent_samples, nets.posterior.latent), philox.purpose(philox.Purpose.LATENT)
        latents = philox.streams(philox.logistic, self.K + 2, key, purpose, rows.samples, shape, **rows.place)
        return Nce(self.contrast).draw(nets, key, rows) | {"latent": latents}

    def _gradient(
        self, nets: Nets, state: State, v: Tensor, noise: Noise, rates: Rates, finish: autodiff.Finish | None = None
    ) -> tuple[Params, State, Info]:
        phi = state.phi

        def lower(logistic: Tensor, p: Params) -> tuple[Tensor, Tensor]:
            log_weight = self._log_weight(nets, state.theta.params, p, v, logistic, relaxed=True)
            loss = torch.nn.functional.softplus(-log_weight).mean()
            return loss, loss.detach()

        info: Info = {}
        for logistic in noise["latent"][: self.K]:
            gradient, info["lower"] = autodiff.grad(partial(lower, logistic), phi.params)
            phi = nets.phi_optimizer.step(phi, collectives.mean(gradient), rates["phi"])

        gradient, info["loss"] = autodiff.grad(partial(self._loss, nets, phi.params, v, noise), state.theta.params)
        return gradient, state._replace(phi=phi), info

    def _loss(self, nets: Nets, phi: Params, v: Tensor, noise: Noise, theta: Params) -> tuple[Tensor, Tensor]:
        softplus, (on_data, on_noise) = torch.nn.functional.softplus, noise["latent"][-2:]
        y = contrast_of(nets).noise(noise["contrast"])
        bound = softplus(-self._log_weight(nets, theta, phi, v, on_data, relaxed=False)).mean()
        weights = self._log_weight(nets, theta, phi, y, on_noise, relaxed=False)
        loss = bound + softplus(weights.logsumexp(0) - math.log(self.latent_samples)).mean()
        return loss, loss.detach()

    def _log_weight(self, nets: Nets, theta: Params, phi: Params, v: Tensor, logistic: Tensor, relaxed: bool) -> Tensor:
        """Return log p~(v, h) - log q(h|v) - log p_noise(v) at h ~ q(h|v), one value per sample of h [L, B]."""
        contrast, q, noise = contrast_of(nets).at(theta), nets.posterior.at(phi), logistic.movedim(-2, -3)
        p = q.params(v)
        h = q.rsample(p, noise) if relaxed else q.sample(p, noise)
        return -contrast.model.energy(v, h) - contrast.log_z - q.log_prob(p, h) - contrast.log_noise(v)

    def validation(self, nets: Nets, state: State, v: Tensor, noise: Noise, size: int | None = None) -> Tensor:
        return self._loss(nets, state.phi.params, v, noise, state.theta.params)[1]
