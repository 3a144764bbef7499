"""Score matching: an estimator of the marginal score times a loss on it. Their product is a method."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from eblvm.engine import autodiff
from eblvm.engine import nets as modules
from eblvm.engine.errors import UserError
from eblvm.engine.methods.base import Gradient, Info, Method, Nets, Noise, Rates, Rows, State
from eblvm.engine.methods.chunked import chunked_gradient, chunks
from eblvm.engine.methods.estimates import Batch, Estimator, Features, Loss
from eblvm.engine.optim.base import Optimizer, Weights
from eblvm.engine.options import Kinds
from eblvm.engine.types import Params
from eblvm.kernels import philox

if TYPE_CHECKING:
    from torch import Tensor

    from eblvm.engine.config import Config
    from eblvm.engine.nets import Energy, Posterior


class ScoreMatching(Method):
    """J(theta) = E F(s(v; theta)) for the loss F and the estimate s of the score."""

    overlaps = diagnoses = True

    estimator: Estimator
    loss: Loss

    def __post_init__(self) -> None:
        """Give the product the abilities of its parts."""
        estimator, loss = self.estimator, self.loss
        abilities = {"kind": estimator.prefix + loss.kind, "learns_q": estimator.learns_q, "plans": estimator.plans}
        abilities |= {"pairs_samples": loss.pairs_samples, "micro_batches": loss.micro_batches}
        for name, value in abilities.items():
            object.__setattr__(self, name, value)

    @property
    def blur(self) -> float:
        return self.loss.blur

    def check(self, config: Config) -> None:
        model, loss = config.model, self.loss
        if model.needs_q and not self.learns_q:
            raise UserError(
                f"method {self.kind!r} needs a free energy in closed form, model {model.kind!r} has none; use a method "
                "with a q(h|v), such as 'bidsm'"
            )
        if model.checkpoint in ("blocks", "all") and loss.derivatives > 2:
            raise UserError(
                f"method {self.kind!r} needs a third derivative, a checkpointed model has two; use --checkpoint none"
            )
        if model.precision == "fp16" and not (loss.scales_gradients and self.estimator.scales_gradients):
            raise UserError(f"precision 'fp16' scales the gradients of denoising methods, got {self.kind!r}; use bf16")

    def rates(self) -> dict[str, float | None]:
        return self.estimator.rates()

    def nets(
        self, config: Config, data: Tensor, energy: Energy | None = None, posterior: Posterior | None = None
    ) -> Nets:
        shape = tuple(data.shape[1:])
        nets = self.estimator.nets(config, energy or config.model.energy(shape, self.learns_q), posterior, shape)
        # The engine's models of vectors fit by construction, and the meta device makes torch import its compiler.
        if self.learns_q and (energy is not None or posterior is not None or config.model.images):
            modules.check_fit(nets.energy, nets.posterior, shape)
        return nets

    def init(self, nets: Nets, key: philox.Key, v: Tensor, optimizer: Optimizer) -> State:
        return State(optimizer.init(nets.energy.initial(key)), self.estimator.init_phi(nets, key))

    def draw(self, nets: Nets, key: philox.Key, rows: Rows) -> Noise:
        """Return "perturb", a list of [B, ...], one if shared, what the estimator draws and what the loss draws."""
        noise: Noise = {"perturb": []}
        with philox.together() if rows.place["device"].type == "cuda" else nullcontext():
            if self.loss.perturbs:
                given = self.estimator.batches_per_step, key, philox.purpose(philox.Purpose.PERTURB), rows.samples
                noise["perturb"] = philox.streams(philox.normal, *given, rows.shape, **rows.place)
            noise |= self.estimator.draw(nets, key, rows)
        return noise | self.loss.draw(key, rows)

    def chunked(self, nets: Nets, size: int) -> Gradient:
        return partial(chunked_gradient, self, nets, size)

    def fused(self, nets: Nets, device: torch.device, dtype: torch.dtype) -> Gradient | None:
        if not isinstance(nets.energy, modules.GRBM):  # the one energy with kernels of its own
            return None
        return self.estimator.fused(nets, self.loss, device, dtype)

    def _gradient(
        self, nets: Nets, state: State, v: Tensor, noise: Noise, rates: Rates, finish: autodiff.Finish | None = None
    ) -> tuple[Params, State, Info]:
        scale, rates = self.scales(state, rates)
        upper = partial(self.upper, nets, state.phi, v, noise, rates)
        gradient, (phi, info) = autodiff.grad(upper, state.theta.params, scale, finish)
        return gradient, state._replace(phi=phi), info

    def upper(
        self, nets: Nets, phi: Weights, v: Tensor, noise: Noise, rates: Rates, theta: Params
    ) -> tuple[Tensor, tuple[Weights, Info]]:
        """Return the loss as a function of theta, with phi moved by its real steps and what is logged."""
        batches = self.batches(v, noise)
        features = self.features(nets, theta, batches[-1].v, rates)
        response, phi, lower = self.estimator.respond(nets, theta, features.f, phi, batches, noise, rates)
        loss, info = self.value(nets, theta, response, features, batches[-1], noise, rates)
        return loss, (phi, lower | info)

    def value(
        self, nets: Nets, theta: Params, response: Any, features: Features, batch: Batch, noise: Noise, rates: Rates
    ) -> tuple[Tensor, Info]:
        """Return the mean loss of a batch and what is logged of it, means over the batch as well."""
        estimate = self.estimator.estimate(nets, theta, response, features, batch, noise, rates)
        loss_B = self.loss(estimate, batch, noise)
        loss = loss_B.mean()
        return loss, estimate.info | {"loss": loss.detach()} | self.loss.logged(loss_B.detach(), noise)

    def scales(self, state: State, rates: Rates) -> tuple[Tensor | None, Rates]:
        """Return the loss's scale, and the rates with that of inner gradients; in fp16 only."""
        if not state.scale:
            return None, rates
        return state.scale["value"], rates | {"scale": state.scale["value"].sqrt()}

    def batches(self, v: Tensor, noise: Noise) -> list[Batch]:
        """Return the perturbed data, one batch of it if the noise is shared, else one per step."""
        return [self.loss.perturb(v, eps, noise) for eps in noise["perturb"] or [v.new_zeros(v.shape)]]

    def features(self, nets: Nets, theta: Params, v: Tensor, rates: Rates) -> Features:
        """Return the one pass of the network; in fp16 cotangents are scaled on their way through it."""
        if not self.estimator.reads_features:
            return Features(None, lambda u, keep=False: u)
        with autodiff.named("features"):
            f, pull = autodiff.vjp(nets.energy.at(theta).features, v)
        if (scale := rates.get("scale")) is None:
            return Features(f, pull)
        return Features(f, lambda u, keep=False: pull(autodiff.tree_map(lambda x: x * scale, u), keep=keep) / scale)

    def validation(self, nets: Nets, state: State, v: Tensor, noise: Noise, size: int | None = None) -> Tensor:
        if size is None:
            return self.diagnostics(nets, state, v, noise)["loss"]
        parts = chunks(v, noise, size)
        return torch.stack([self.validation(nets, state, x, eps) * weight for x, eps, weight, _ in parts]).sum()

    def diagnostics(self, nets: Nets, state: State, v: Tensor, noise: Noise) -> Info:
        """Return the upper loss, and with a lower level the divergence D(q || p), at the state as it is."""
        still = replace(self, estimator=self.estimator.without_steps())
        loss, _ = still.upper(nets, state.phi, v, noise | {"perturb": noise["perturb"][:1]}, {}, state.theta.params)
        return {"loss": loss} | self.estimator.diagnostics(nets, state, self.batches(v, noise)[0], noise)

    def graph(self, nets: Nets, state: State, v: Tensor, noise: Noise, rates: Rates) -> Any:
        still = replace(self, estimator=self.estimator.without_steps())
        theta = {k: p.detach().requires_grad_() for k, p in state.theta.params.items()}
        return still.upper(nets, state.phi, v, noise, rates, theta)


def products(estimators: Kinds[Estimator], losses: Kinds[Loss]) -> Iterator[Method]:
    """Yield every loss with every estimator that it can be a function of."""
    for estimator in estimators.values():
        yield from (ScoreMatching(estimator, loss) for loss in losses.values() if estimator.kind in loss.estimators)
