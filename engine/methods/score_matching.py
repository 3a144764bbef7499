"""The score matching objective: estimator (exact, bism, vages) x score loss (SM, SSM, DSM, MDSM, KSD) x divergence x
model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from eblvm.engine.autodiff.derivatives import Finish, grad
from eblvm.engine.methods.bilevel import ExactScore, VariationalScore
from eblvm.engine.methods.losses import Loss
from eblvm.engine.methods.types import Batch, DrawShape, Info, Noise, Rates, ScoreEstimate, State
from eblvm.engine.optim.optimizers import Moments, Optimizer
from eblvm.engine.types import Params
from eblvm.kernels import philox
from eblvm.kernels.philox import Key, Purpose, purpose


@dataclass(frozen=True)
class ScoreMatchingObjective:
    """J(theta) = E F(s(v; theta, phi_N(theta))) for the loss F and the score estimate s of the estimator."""

    estimator: ExactScore | VariationalScore
    loss: Loss
    theta_optimizer: Optimizer
    overlaps: ClassVar[bool] = True

    def init(self, key: Key, v: Tensor) -> State:
        theta = self.estimator.energy.initial(key)
        phi: Params = {}
        phi_opt: Moments = ()
        if isinstance(self.estimator, VariationalScore):
            phi = self.estimator.posterior.initial(key)
            phi_opt = self.estimator.optimizer.init(phi)
        return State(theta, phi, self.theta_optimizer.init(theta), phi_opt, {}, {})

    def draw(self, key: Key, v: Tensor, first: int = 0, total: int | None = None) -> Noise:
        """Noise of samples first .. first + B - 1 of a global batch of `total` (none: v is all of it).

        perturb: [B, ...] per step (one if shared), what the estimator draws, and what the loss draws."""
        replicas = torch.as_tensor(key.seed).dim()
        count = v.shape[replicas]
        shape = DrawShape(
            count, tuple(v.shape[replicas + 1 :]), first, total or first + count, tuple(v.shape[:replicas]), v.dtype,
            v.device,
        )  # fmt: skip
        noise: Noise = {"perturb": [], "latent": []}
        with philox.together():
            if self.loss.perturbs:
                number = self.estimator.batches_per_step
                noise["perturb"] = philox.streams(
                    philox.normal, number, key, purpose(Purpose.PERTURB), count, shape.shape, **shape.options
                )
            if isinstance(self.estimator, VariationalScore):
                noise |= self.estimator.draw(key, count, shape.options)
        return noise | self.loss.draw(key, shape)

    @property
    def batch_axes(self) -> dict[str, int]:
        """The axis of the samples in every kind of noise."""
        return {"perturb": 0, "latent": 1} | self.estimator.batch_axes | self.loss.batch_axes

    def gradient(
        self, state: State, v: Tensor, noise: Noise, rates: Rates, finish: Finish | None = None
    ) -> tuple[Params, State, Info]:
        scale, rates = scales(state, rates)
        gradient, (phi, phi_opt, info) = grad(
            lambda theta: self.upper(theta, state, v, noise, rates), state.theta, scale, finish
        )
        return gradient, state._replace(phi=phi, phi_opt=phi_opt), info

    def upper(
        self, theta: Params, state: State, v: Tensor, noise: Noise, rates: Rates
    ) -> tuple[Tensor, tuple[Params, Moments, Info]]:
        """The loss as a function of theta, with the posterior's next real state and what is logged."""
        batches = self.batches(v, noise)
        estimate, phi, phi_opt, info = self.estimator(theta, state.phi, state.phi_opt, batches, noise, rates)
        loss, upper_info = self.value(estimate, batches[-1], noise)
        return loss, (phi, phi_opt, info | upper_info)

    def value(self, estimate: ScoreEstimate, batch: Batch, noise: Noise) -> tuple[Tensor, Info]:
        """The mean loss of a batch and what is logged of it: means over the batch, all of them."""
        loss_B = self.loss(estimate, batch, noise)
        loss = loss_B.mean()
        return loss, {"loss": loss.detach()} | self.loss.logged(loss_B.detach(), noise)

    def batches(self, v: Tensor, noise: Noise) -> list[Batch]:
        """The perturbed data, one batch of it if the noise is shared, else one per step."""
        return [self.loss.perturb(v, eps, noise) for eps in noise["perturb"] or [None]]

    def validation(self, state: State, v: Tensor, noise: Noise) -> Tensor:
        return self.diagnostics(state, v, noise)["loss"]

    def diagnostics(self, state: State, v: Tensor, noise: Noise) -> Info:
        """The upper loss and, of a bi-level method, the divergence D(q || p), at the state as it is."""
        variational = self.estimator if isinstance(self.estimator, VariationalScore) else None
        estimator = variational.without_steps() if variational else self.estimator
        batch = self.batches(v, noise)[0]
        estimate, *_ = estimator(state.theta, state.phi, state.phi_opt, [batch], noise, {})
        info = {"loss": self.loss(estimate, batch, noise).mean()}
        if variational:
            info["divergence"] = variational.divergence(state.theta, state.phi, batch, noise["latent"][0])
        return info


def scales(state: State, rates: Rates) -> tuple[Tensor | None, Rates]:
    """The loss's scale, and the rates with that of inner gradients; in fp16 only."""
    if not state.scale:
        return None, rates
    return state.scale["value"], rates | {"scale": state.scale["value"].sqrt()}
