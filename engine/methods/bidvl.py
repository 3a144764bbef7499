"""Bi-level doubly variational learning (Kan et al. 2022): an energy, an encoder q(h|v) and a generator v = G(h).

theta is the energy; phi is encoder (omega_1) and generator (omega_2). theta moves first, by the upper level, then phi
at the moved theta, by the lower one (bidvl_levels.py has both). G does not move in between, so one pass of it is enough
for the upper level and the first lower step. Images are in [0, 1] for whoever calls and in [-1, 1] in the losses and
nets.
"""

from __future__ import annotations  # torch.compile does not know how to evaluate those of inner functions

from copy import copy
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from eblvm.engine import autodiff
from eblvm.engine.autodiff import collectives, mixed_precision
from eblvm.engine.errors import UserError
from eblvm.engine.methods.base import (
    Gradient,
    Info,
    Method,
    Nets,
    Noise,
    Rates,
    Rows,
    State,
    TrainingStep,
    blank,
    parameters,
)
from eblvm.engine.methods.bidvl_levels import ENCODER, ENERGY, GENERATOR, Levels, centred, named, squared_error
from eblvm.engine.methods.bism import SYNC_HELP, UNROLL_MEMORY_HELP
from eblvm.engine.nets import bidvl as modules
from eblvm.engine.nets import spectral
from eblvm.engine.optim.base import Moments, Optimizer, Weights, averaged
from eblvm.engine.options import option
from eblvm.engine.types import Params
from eblvm.kernels import adam_unroll, philox

if TYPE_CHECKING:
    from torch import Tensor

    from eblvm.engine.config import Config
    from eblvm.engine.nets import Energy, Posterior


class Bidvl(Method):
    kind = "bidvl"
    learns_q = generates = plans = micro_batches = alternates = True
    energy_limit = 1e3  # energies of spectrally normalised nets are some tens in health

    K: int = option(1, "real lower steps on encoder and generator per minibatch", low=1)
    N: int = option(0, "unrolled lower steps that the upper gradient flows through", low=0)
    lower_lr: float | None = option(
        None, "Adam's learning rate for encoder and generator; none: that of the energy", above=0
    )
    weight_decay: float = option(0.0, "L2 in the gradient of encoder and generator", low=0)
    unroll_memory: str = option("store", UNROLL_MEMORY_HELP, choices=("store", "recompute"))
    sync: str = option("global", SYNC_HELP, choices=("global", "local"))
    energy: str = option("decoupled", "E(v) beside q(h|v), or one E(v, h) of both", choices=("decoupled", "joint"))
    divergence: str = option("symmetric", "lower level's divergence; 'kl' is AdVIL's form", choices=("symmetric", "kl"))
    opposite: str = option(
        "offset",
        "the terms D(p||q) of both levels that oppose each other: offset (Eq. 13-14), complete with the stable upper "
        "term (Eq. 11, section 4.4), literal with its own (Eq. 11-12), or none of them",
        choices=("offset", "complete", "literal", "none"),
    )
    latent_term: str = option(
        "mean",
        "that D(p||q) as the squared error of h, its mean or its sum over the units, as the released programs have it, "
        "or as the negative log density",
        choices=("mean", "sum", "density"),
    )
    latent_weight: float = option(1.0, "factor of that D(p||q)", low=0)
    ratio: float = option(0.05, "r', the mean importance ratio of data in the lower level", above=0)
    ratio_bias: str = option(
        "none",
        "its factor by sample (Eq. 15): none, a sigmoid, or clamped to 0.8 .. 1.2",
        choices=("none", "sigmoid", "clamped"),
    )
    power_iteration: str = option(
        "step",
        "of spectral norms: one per training step, or one in every pass of a net as in the released programs",
        choices=("step", "pass"),
    )
    upper: str = option("plain", "upper level: Eq. 14, or its hinge form (Eq. 23)", choices=("plain", "hinge"))

    @property
    def joint(self) -> bool:
        return self.energy == "joint"

    def check(self, config: Config) -> None:
        model, step = config.model, config.step
        if self.joint and self.opposite != "none":
            raise UserError(
                "the opposite terms come from decoupling the energy, a joint one has none; add --opposite none"
            )
        if self.divergence == "kl" and not self.joint and self.opposite in ("offset", "none"):
            raise UserError(
                f"with divergence 'kl' and opposite {self.opposite!r} no term is left that trains the encoder; "
                "use --opposite complete, or --divergence symmetric"
            )
        if self.unroll_memory == "recompute" and step.compile:
            raise UserError(
                "--unroll-memory recompute rebuilds a graph that a compiled step does not have; remove it or --compile"
            )
        unrolls_deeply = self.N > 1 or self.unroll_memory == "recompute"
        if unrolls_deeply and model.channels_last and config.running.dtype == "float64":
            raise UserError(
                "torch's convolutions of float64 in channels_last order cannot be unrolled twice or recomputed; remove "
                "--channels-last, or use --dtype float32"
            )
        if self.upper == "hinge" and config.get("output") == "softplus":
            raise UserError("a softplus energy never passes the hinge at -1; add --output real")

    def waits(self, config: Config) -> str | None:
        fp16 = config.model.precision == "fp16"
        return "bidvl asks before each move whether a gradient of fp16 is finite" if fp16 else None

    def rates(self) -> dict[str, float | None]:
        return {"phi": self.lower_lr}

    def nets(
        self, config: Config, data: Tensor, energy: Energy | None = None, posterior: Posterior | None = None
    ) -> Nets:
        if energy or posterior:
            raise UserError("method 'bidvl' trains its own three nets; remove `energy` and `posterior`")
        optimizer = config.optimisation.phi_optimizer(weight_decay=self.weight_decay)
        return Nets(*config.model.generative(tuple(data.shape[1:]), self.joint), optimizer)

    def init(self, nets: Nets, key: philox.Key, v: Tensor, optimizer: Optimizer) -> State:
        starts = {prefix: net.initial(key) for prefix, net in by_prefix(nets).items()}
        phi = named(ENCODER, starts[ENCODER]) | named(GENERATOR, starts[GENERATOR])
        buffers: Params = {}
        for i, (prefix, net) in enumerate(by_prefix(nets).items()):
            first = 2**14 + i * 2**12  # streams beyond those of parameters
            buffers |= named(prefix, modules.start_buffers(net, starts[prefix], key, first))
        return State(optimizer.init(starts[ENERGY]), nets.phi_optimizer.init(phi), buffers=buffers)

    def blank(self, nets: Nets, optimizer: Optimizer, dtype: torch.dtype) -> State:
        trees = {prefix: parameters(net, dtype) for prefix, net in by_prefix(nets).items()}
        phi = named(ENCODER, trees[ENCODER]) | named(GENERATOR, trees[GENERATOR])
        buffers = {
            prefix + name: blank(b, dtype) for prefix, net in by_prefix(nets).items() for name, b in net.named_buffers()
        }
        return State(optimizer.init(trees[ENERGY]), nets.phi_optimizer.init(phi), buffers=buffers)

    def draw(self, nets: Nets, key: philox.Key, rows: Rows) -> Noise:
        """Return h [B, H] of the generator and eps [B, H] of the encoder, for K real and N unrolled steps."""
        sizes = rows.samples, (nets.posterior.latent,)
        of_h, of_eps = philox.purpose(philox.Purpose.SAMPLE_H), philox.purpose(philox.Purpose.LATENT)
        h = philox.streams(philox.normal, self.K + self.N, key, of_h, *sizes, **rows.place)
        return {"h": h, "eps": philox.streams(philox.normal, self.K + self.N, key, of_eps, *sizes, **rows.place)}

    def chunked(self, nets: Nets, size: int) -> Gradient:
        return self.gradient(in_chunks(nets, size))

    def _gradient(
        self, nets: Nets, state: State, v: Tensor, noise: Noise, rates: Rates, finish: autodiff.Finish | None = None
    ) -> tuple[Params, State, Info]:
        """Return the upper level's gradient (Eq. 14, or 23) at the state as it is."""
        levels = Levels(self, nets)
        fake = levels.generated(state.phi.params, noise["h"][0])
        gradient, _, info = levels.upper_gradient(state, centred(v), fake, noise, rates)
        return gradient, state, info

    def alternating(self, nets: Nets, optimizer: Optimizer, size: int | None, in_place: bool) -> TrainingStep:
        levels = Levels(self, nets if size is None else in_chunks(nets, size))
        return partial(self._step, levels, optimizer, in_place)

    def _step(
        self, levels: Levels, optimizer: Optimizer, in_place: bool, state: State, v: Tensor, noise: Noise, rates: Rates
    ) -> tuple[State, Info]:
        """Move theta by the upper level, then phi by K steps; the first pass of the generator is enough for both. In
        fp16 a gradient that overflowed leaves its own parameters and buffers as they are."""
        v, scale, finite = centred(v), state.scale.get("value"), Finite()
        state = self._refreshed(state)
        fake = levels.generated(state.phi.params, noise["h"][0])
        mean = Reduced(state.theta.params)
        gradient, data_B, info = levels.upper_gradient(state, v, fake, noise, rates, mean.finish)
        gradient, info = mean.of(gradient), collectives.mean(info)
        if finite.allows(gradient, scale):
            state = levels.after_upper(state)
            theta, norm = optimizer.move(state.theta, gradient, rates["theta"], in_place=in_place)
            state, info = state._replace(theta=theta), info | {"gradient_norm": norm}
        del gradient  # it is not to live through the lower level
        if self.opposite in ("complete", "literal"):
            state = self._move_encoder(levels, in_place, state, fake.v.detach(), noise["h"][0], rates, finite)
        ratio_B = levels.importance(data_B)
        for k in range(self.K):
            if k:
                fake = levels.generated(state.phi.params, noise["h"][k])
            mean = Reduced(state.phi.params)
            given = noise["h"][k], noise["eps"][k], ratio_B
            gradient, buffers, lower = levels.lower_gradient(state, v, fake, *given, mean.finish)
            gradient, lower = mean.of(gradient), collectives.mean(lower)
            if finite.allows((gradient, buffers), scale):
                phi, _ = levels.nets.phi_optimizer.move(state.phi, gradient, rates["phi"], in_place=in_place)
                state = state._replace(phi=phi, buffers=buffers)
        if scale is not None:
            moved = mixed_precision.next_scale(state.scale, torch.tensor(finite.so_far, device=v.device))
            state = state._replace(scale=moved)
            info = info | {"loss_scale": scale, "skipped": torch.full_like(scale, not finite.all_allowed)}
        if optimizer.average is not None:
            state = state._replace(phi=averaged(state.phi, optimizer.average, in_place))
        return state, info | lower

    def _refreshed(self, state: State) -> State:
        """Make one power iteration of every spectral vector for both levels, unless every pass has one of its own."""
        if self.power_iteration == "pass":
            return state
        weights = named(ENERGY, state.theta.params) | state.phi.params
        return state._replace(buffers=spectral.power_iteration(weights, state.buffers))

    def _move_encoder(
        self, levels: Levels, in_place: bool, state: State, model_v: Tensor, h: Tensor, rates: Rates, finite: Finite
    ) -> State:
        """Make the upper level's step on the encoder. It is not counted in Adam's steps, which the generator shares."""
        (params, (m, v, step_count), _), scale = state.phi, state.scale.get("value")
        mean = Reduced(modules.part(params, ENCODER))
        gradient = mean.of(levels.encoder_gradient(params, state.buffers, model_v, h, scale, mean.finish))
        if not finite.allows(gradient, scale):
            return state
        own_m, own_v = ({k: tree[k] for k in gradient if k in tree} for tree in (m, v))
        own = Weights({k: params[k] for k in gradient}, Moments(own_m, own_v, step_count))
        moved, _ = levels.nets.phi_optimizer.move(own, gradient, rates["phi"], in_place=in_place)
        moments = Moments(m | moved.moments.m, v | moved.moments.v, step_count)
        return state._replace(phi=state.phi._replace(params=params | moved.params, moments=moments))

    def validation(self, nets: Nets, state: State, v: Tensor, noise: Noise, size: int | None = None) -> Tensor:
        """Return the mean squared error of images in [-1, 1] rebuilt from their posterior means."""
        nets = nets if size is None else in_chunks(nets, size)
        return squared_error(centred(v), centred(self.reconstruct(nets, state, v))).mean() / v[0].numel()

    def encoded(self, nets: Nets, state: State, v: Tensor) -> tuple[Tensor, Tensor]:
        return Levels(self, nets).encode(state.phi.params, state.buffers, centred(v), None)

    def decode(self, nets: Nets, state: State, h: Tensor) -> Tensor:
        return 0.5 + 0.5 * Levels(self, nets).decode(state.phi.params | state.buffers, h, None)

    def marginal_energy(self, nets: Nets, state: State, v: Tensor) -> Tensor:
        """Return E(v) [B]; for a joint energy, whose marginal nobody knows, E(v, mean of q(h|v))."""
        h = self.encode(nets, state, v) if self.joint else v.new_empty(len(v), 0)
        return Levels(self, nets).energy(state.theta.params, state.buffers, centred(v), h)


def by_prefix(nets: Nets) -> dict[str, Any]:
    """Return the three nets by the prefix of their names in a state."""
    return {ENERGY: nets.energy, ENCODER: nets.posterior, GENERATOR: nets.generator}


def in_chunks(nets: Nets, size: int) -> Nets:
    """Return nets that take at most `size` samples at once, batch norms included (nets/chunks.py)."""
    nets = replace(nets, energy=copy(nets.energy), posterior=copy(nets.posterior), generator=copy(nets.generator))
    for net in by_prefix(nets).values():
        net.micro_batch = size
    return nets


class Reduced:
    """The mean over processes of a gradient for `params`; its parts travel while backward goes on, those of replicas
    after it."""

    def __init__(self, params: Params):
        underway = collectives.size() > 1 and not autodiff.derivatives.inside_torch_func()
        self.finish = collectives.MeanUnderWay(list(params.values())) if underway else None

    def of(self, gradient: Params) -> Params:
        if self.finish is None:
            return collectives.mean(gradient)
        return dict(zip(gradient, self.finish.wait(list(gradient.values())), strict=True))


class Finite:
    """Were all gradients of a step finite, in fp16? Each is asked for before it is used: the host waits."""

    def __init__(self) -> None:
        self.so_far = self.all_allowed = True

    def allows(self, tree: Any, scale: Tensor | None) -> bool:
        """May these gradients be used? All may without a scale, or at the smallest one, which caused no overflow."""
        if scale is None:
            return True
        finite = bool(adam_unroll.all_finite(autodiff.tree_leaves(tree)))
        allowed = finite or bool(scale <= mixed_precision.SMALLEST)
        self.so_far &= finite
        self.all_allowed &= allowed
        return allowed
