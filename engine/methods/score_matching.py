"""Score matching objectives: estimator (exact, bism) x score loss (SM, SSM, DSM, MDSM) x divergence x model."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from eblvm.engine.autodiff.mixed_precision import grad_scaled
from eblvm.engine.methods.bilevel import FreeEnergy, Info, Rates, Variational
from eblvm.engine.methods.losses import Batch, Mdsm, ScoreLoss, Ssm, Surrogate
from eblvm.engine.methods.update import Noise, State
from eblvm.engine.models.energy import Params
from eblvm.engine.optim.optimizers import Adam, Moments
from eblvm.kernels import philox
from eblvm.kernels.philox import Key, Purpose, purpose


@dataclass(frozen=True)
class ScoreMatching:
    """J(theta) = E F(s(v; theta, phi_N(theta))) for the loss F and the score estimate s of the estimator."""

    estimator: FreeEnergy | Variational
    loss: ScoreLoss
    theta_optimizer: Adam
    shared_noise: bool = True
    directions: int = 1
    draw_direction: Callable[..., Tensor] = philox.rademacher

    def init(self, key: Key, v: Tensor) -> State:
        theta = self.estimator.energy.initial(key)
        phi: Params = {}
        phi_opt: Moments = ()
        if isinstance(self.estimator, Variational):
            phi = self.estimator.posterior.initial(key)
            phi_opt = self.estimator.lower_optimizer.init(phi)
        return State(theta, phi, self.theta_optimizer.init(theta), phi_opt, {}, {})

    def draw(self, key: Key, v: Tensor, first: int = 0, total: int | None = None) -> Noise:
        """Noise of samples first .. first + B - 1 of a global batch of `total` (none: v is all of it).

        perturb: [B, ...] a step (one if shared), direction: [M, B, ...], what the estimator draws; MDSM's level: [B] in
        [0, 1], and third: [3, B], weights whose mean over the batch is that of a third of the levels."""
        replicas = torch.as_tensor(key.seed).dim()
        count, shape = v.shape[replicas], tuple(v.shape[replicas + 1 :])
        place: dict[str, Any] = {"first": first, "dtype": v.dtype, "device": v.device}
        noise: Noise = {"perturb": [], "latent": []}
        if self.loss.perturbs:
            number = 1 if self.shared_noise else max(self.estimator.steps, 1)
            noise["perturb"] = philox.streams(
                philox.normal, number, key, purpose(Purpose.PERTURB), count, shape, **place
            )
        if isinstance(self.estimator, Variational):
            noise |= self.estimator.draw(key, count, place)
        if isinstance(self.loss, Mdsm):
            total = total or first + count
            level = torch.arange(total, dtype=v.dtype, device=v.device) / max(1, total - 1)
            third = torch.arange(3, device=v.device)[:, None] == (3 * level).long().clamp(max=2)
            share = third * (total / third.sum(1, keepdim=True).clamp(min=1))
            here = slice(first, first + count)
            noise["level"] = level[here].expand(*v.shape[:replicas], count)
            noise["third"] = share[:, here].to(v.dtype).expand(*v.shape[:replicas], 3, count)
        if isinstance(self.loss, Ssm):
            directions = [
                self.draw_direction(key, purpose(Purpose.DIRECTION, i), count, shape, **place)
                for i in range(self.directions)
            ]
            noise["direction"] = torch.stack(directions, replicas)
        return noise

    def gradient(self, state: State, v: Tensor, noise: Noise, rates: Rates) -> tuple[Params, State, Info]:
        scale, rates = scales(state, rates)
        gradient, (phi, phi_opt, info) = grad_scaled(
            lambda theta: self.upper(theta, state, v, noise, rates), state.theta, scale
        )
        return gradient, state._replace(phi=phi, phi_opt=phi_opt), info

    def upper(
        self, theta: Params, state: State, v: Tensor, noise: Noise, rates: Rates
    ) -> tuple[Tensor, tuple[Params, Moments, Info]]:
        """The loss as a function of theta, with the posterior's next real state and what is logged."""
        batches = self.batches(v, noise)
        surrogate, phi, phi_opt, info = self.estimator(theta, state.phi, state.phi_opt, batches, noise, rates)
        loss, upper_info = self.value(surrogate, batches[-1], noise)
        return loss, (phi, phi_opt, info | upper_info)

    def value(self, surrogate: Surrogate, batch: Batch, noise: Noise) -> tuple[Tensor, Info]:
        """The mean loss of a batch and what is logged of it: means over the batch, all of them."""
        loss_B = self.loss(surrogate, batch, noise.get("direction"))
        loss = loss_B.mean()
        return loss, {"loss": loss.detach()} | self._by_level(loss_B.detach(), noise)

    def batches(self, v: Tensor, noise: Noise) -> list[Batch]:
        """The perturbed data, one batch of it if the noise is shared, else one a step."""
        if isinstance(self.loss, Mdsm):
            return [self.loss.perturb(v, eps, noise["level"]) for eps in noise["perturb"]]
        return [self.loss.perturb(v, eps) for eps in noise["perturb"] or [None]]

    def _by_level(self, loss_B: Tensor, noise: Noise) -> Info:
        """MDSM's mean loss over the lowest, middle and highest third of the noise levels."""
        if not isinstance(self.loss, Mdsm):
            return {}
        names = ("loss_low_sigma", "loss_middle_sigma", "loss_high_sigma")
        return dict(zip(names, (noise["third"] * loss_B).mean(1), strict=True))

    def validation(self, state: State, v: Tensor, noise: Noise) -> Tensor:
        return self.diagnostics(state, v, noise)["loss"]

    def diagnostics(self, state: State, v: Tensor, noise: Noise) -> Info:
        """The upper loss and, of a bi-level method, the divergence D(q || p), at the state as it is."""
        variational = self.estimator if isinstance(self.estimator, Variational) else None
        estimator = variational.at_rest() if variational else self.estimator
        batch = self.batches(v, noise)[0]
        surrogate, *_ = estimator(state.theta, state.phi, state.phi_opt, [batch], noise, {})
        info = {"loss": self.loss(surrogate, batch, noise.get("direction")).mean()}
        if variational:
            info["divergence"] = variational.gap(state.theta, state.phi, batch, noise["latent"][0])
        return info


def scales(state: State, rates: Rates) -> tuple[Tensor | None, Rates]:
    """The loss's scale, and the rates with that of inner gradients; in fp16 only."""
    if not state.scale:
        return None, rates
    return state.scale["value"], rates | {"scale": state.scale["value"].sqrt()}
