"""Bi-level doubly variational learning (Kan et al. 2022): an energy, an encoder q(h|v) and a generator v = G(h).

theta is the energy; phi is encoder (omega_1) and generator (omega_2). With h ~ N(0, I), v~ = G(h) and data v:

    upper (Eq. 14)  J(theta) = E E(v) - E E(v~);  hinge (Eq. 23): E relu(1 + E(v)) + E relu(1 - E(v~))
    lower (Eq. 13)  J(phi)   = E E(v~) + E r(v) [|v - G(h_q)|^2 + KL(q(h|v) || N(0, I))] + D,  h_q ~ q(h|v)
                    D = D(p(v, h) || q(h|v)) = -E log q(h|v~), as a function of the generator alone

`opposite` says what becomes of D's gradient for the encoder, +dD in the lower and -dD in the upper level (Eq. 11-12):
`offset` leaves both out, `literal` takes both, `complete` takes the first and puts KL(q(h|v~) || N(0, I)) in the place
of the second (section 4.4), `none` has no D at all. A joint energy (Eq. 4, 6) has E(v~, h) for E(v~), and in both
levels E [E(v, h_q) + log q(h_q|v)] for E(v). Its reverse divergence in the lower level is the weighted term above, with
q in the place of p(h|v), whose samples nobody has. `kl` instead of the symmetric divergence leaves that term out.

theta moves first, then phi at the moved theta. G does not move in between, so one pass of it serves the upper level and
the first lower step. Images are in [0, 1] for whoever calls and in [-1, 1] in the losses and nets.

Shape tags: B batch, H latent units.
"""

from __future__ import annotations  # torch.compile does not know how to evaluate those of inner functions

from collections.abc import Callable
from copy import copy
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from eblvm.engine.autodiff import collectives
from eblvm.engine.autodiff.derivatives import grad, vjp
from eblvm.engine.autodiff.unroll import unroll
from eblvm.engine.methods.kinds.bidvl import Bidvl
from eblvm.engine.methods.types import Info, Noise, Rates, State
from eblvm.engine.nets.base import call
from eblvm.engine.nets.batch_norm import Seen, blended
from eblvm.engine.nets.bidvl import Encoder, Generator, SpectralEnergy, part
from eblvm.engine.nets.bidvl_start import start_buffers
from eblvm.engine.nets.spectral import for_passes, power_iteration
from eblvm.engine.optim.optimizers import Moments, Optimizer
from eblvm.engine.types import Params
from eblvm.kernels import philox
from eblvm.kernels.philox import Key, Purpose, purpose

PREFIXES = ENERGY, ENCODER, GENERATOR = "energy.", "encoder.", "generator."
BUFFER_STREAMS = 2**14  # of the start's noise: beyond those of parameters
CLAMP = (0.8, 1.2)  # of the importance ratio's factor by sample, as in the released code


class Generated(NamedTuple):
    """v~ = G(h), its pullback to the generator's parameters, and what its batch norms saw."""

    v: Tensor
    pull: Callable[[Tensor], Params]
    seen: Seen


@dataclass(frozen=True)
class BidvlObjective:
    options: Bidvl
    energy: SpectralEnergy
    encoder: Encoder
    generator: Generator
    theta_optimizer: Optimizer
    lower_optimizer: Optimizer

    def micro_batched(self, size: int) -> BidvlObjective:
        """With nets that take at most `size` samples at once."""
        nets = {name: copy(getattr(self, name)) for name in ("energy", "encoder", "generator")}
        for net in nets.values():
            net.micro_batch = size
        return replace(self, **nets)

    def init(self, key: Key, v: Tensor) -> State:
        theta = self.energy.initial(key)
        encoder, generator = self.encoder.initial(key), self.generator.initial(key)
        phi = _named(ENCODER, encoder) | _named(GENERATOR, generator)
        nets = zip(PREFIXES, (self.energy, self.encoder, self.generator), (theta, encoder, generator), strict=True)
        buffers: Params = {}
        for i, (prefix, net, params) in enumerate(nets):
            buffers |= _named(prefix, start_buffers(net, params, key, BUFFER_STREAMS + i * 2**12))
        theta_opt, phi_opt = self.theta_optimizer.init(theta), self.lower_optimizer.init(phi)
        return State(theta, phi, theta_opt, phi_opt, {}, {}, buffers=buffers)

    def draw(self, key: Key, v: Tensor, first: int = 0, total: int | None = None) -> Noise:
        """h [B, H] of the generator and eps [B, H] of the encoder, for K real and N unrolled steps."""
        count = v.shape[torch.as_tensor(key.seed).dim()]
        kwargs: dict[str, Any] = {"first": first, "dtype": v.dtype, "device": v.device}
        streams = {"h": Purpose.SAMPLE_H, "eps": Purpose.LATENT}
        return {
            name: philox.streams(
                philox.normal,
                self.options.K + self.options.N,
                key,
                purpose(of),
                count,
                (self.encoder.latent,),
                **kwargs,
            )
            for name, of in streams.items()
        }

    def gradient(self, state: State, v: Tensor, noise: Noise, rates: Rates) -> tuple[Params, State, Info]:
        """The upper level's gradient (Eq. 14, or 23) at the state as it is."""
        fake = self.generated(state.phi, noise["h"][0])
        gradient, _, info = self.upper_gradient(state, centred(v), fake, noise, rates)
        return gradient, state, info

    def refreshed(self, state: State) -> State:
        """One power iteration of every spectral vector for both levels, unless every pass has one of its own."""
        if self.options.power_iteration == "pass":
            return state
        nets = _named(ENERGY, state.theta) | state.phi
        return state._replace(buffers=power_iteration(nets, state.buffers))

    def passes(self, prefix: str, params: Params, buffers: Params, count: int) -> list[Params]:
        """The buffers of `count` passes of a net in turn: the same, or each after a power iteration of its own."""
        if self.options.power_iteration == "step":
            return [buffers] * count
        params = _named(prefix, params) if prefix == ENERGY else params
        return for_passes(params, buffers, prefix, count)

    def after_upper(self, state: State) -> State:
        """With the buffers that the upper level's passes leave."""
        buffers = self.passes(ENERGY, state.theta, state.buffers, 2)[-1]
        if self.options.joint:
            buffers = self.passes(ENCODER, state.phi, buffers, 1)[-1]
        return state._replace(buffers=buffers)

    def after_lower(self, state: State) -> Params:
        """The buffers that a lower step's passes leave."""
        buffers = self.passes(ENERGY, state.theta, state.buffers, self.energy_passes)[-1]
        return self.passes(ENCODER, state.phi, buffers, self.encoder_passes)[-1]

    @property
    def energy_passes(self) -> int:
        """Of a lower step: the generated images, and the data for a joint energy."""
        return 1 + self.options.joint

    @property
    def encoder_passes(self) -> int:
        """Of a lower step: the data, and the generated images for D."""
        reads_data = self.options.joint or self.options.divergence == "symmetric"
        return max(1, reads_data + (self.options.opposite != "none"))

    def generated(self, phi: Params, h: Tensor) -> Generated:
        def decode(parameters: Params) -> tuple[Tensor, Seen]:
            seen: Seen = []
            return call(self.generator, parameters, "decode", h, seen), seen

        (v, seen), pull = vjp(decode, part(phi, GENERATOR))
        return Generated(v, lambda u: _named(GENERATOR, pull((u, [torch.zeros_like(s) for s in seen]))), seen)

    # The upper level.

    def upper_gradient(
        self, state: State, v: Tensor, fake: Generated, noise: Noise, rates: Rates
    ) -> tuple[Params, Tensor, Info]:
        """(dJ/dtheta, the energies of the data [B], what is logged); N unrolled steps carry gradient if there are."""
        h, eps = noise["h"][0], noise["eps"][0]

        def upper(theta: Params) -> tuple[Tensor, tuple[Tensor, Info]]:
            phi, model_v = state.phi, fake.v.detach()
            if self.options.N:
                phi = self._unrolled(theta, state, v, noise, rates)
                model_v = call(self.generator, part(phi, GENERATOR), "decode", h, [])
            return self.upper(theta, phi, state.buffers, v, model_v, h, eps)

        gradient, (data_B, info) = grad(upper, state.theta, loss_scale(state))
        return gradient, data_B, info

    def upper(
        self, theta: Params, phi: Params, buffers: Params, v: Tensor, model_v: Tensor, h: Tensor, eps: Tensor
    ) -> tuple[Tensor, tuple[Tensor, Info]]:
        """J(theta), with the energies of the data and what is logged."""
        h_q, log_q_B = h, v.new_zeros(())
        if self.options.joint:
            p = self._encode(phi, self.passes(ENCODER, phi, buffers, 1)[0], v, [])
            h_q = self.encoder.rsample(p, eps)
            log_q_B = self.encoder.log_prob(p, h_q)
        of_data, of_model = self.passes(ENERGY, theta, buffers, 2)
        if of_data is of_model:
            data_B, model_B = self._energy(theta, of_data, torch.cat([v, model_v]), torch.cat([h_q, h])).chunk(2)
        else:
            data_B, model_B = self._energy(theta, of_data, v, h_q), self._energy(theta, of_model, model_v, h)
        loss_B = F.relu(1 + data_B) + F.relu(1 - model_B) if self.options.upper == "hinge" else data_B - model_B
        loss = (loss_B + log_q_B).mean()
        data_B, model_B = data_B.detach(), model_B.detach()
        info = {"loss": loss.detach(), "energy_data": data_B.mean(), "energy_model": model_B.mean()}
        return loss, (data_B, info)

    def encoder_gradient(
        self, phi: Params, buffers: Params, model_v: Tensor, h: Tensor, scale: Tensor | None = None
    ) -> Params:
        """The upper level's gradient for the encoder: of KL(q(h|v~) || N(0, I)), or of -D."""

        def loss(encoder: Params) -> tuple[Tensor, tuple[()]]:
            phi = _named(ENCODER, encoder)
            p = self._encode(phi, self.passes(ENCODER, phi, buffers, 1)[0], model_v, [])
            if self.options.opposite == "literal":
                return -self.latent_divergence(p, h), ()
            return self.options.latent_weight * prior_kl(p).mean() / self._terms(h), ()

        return _named(ENCODER, grad(loss, part(phi, ENCODER), scale)[0])

    def _unrolled(self, theta: Params, state: State, v: Tensor, noise: Noise, rates: Rates) -> Params:
        ratio_B = torch.full_like(
            v.flatten(1)[:, 0], self.options.ratio
        )  # the energies of its bias term are not known yet
        scale = loss_scale(state)
        inner = () if scale is None else (scale.sqrt(),)
        contexts = [
            (theta, state.buffers, v, h, eps, ratio_B, rates["unroll"], *inner)
            for h, eps in zip(noise["h"][self.options.K :], noise["eps"][self.options.K :], strict=True)
        ]
        return unroll(self._unrolled_step, state.phi, state.phi_opt, contexts, self.options.unroll_memory)

    def _unrolled_step(self, phi: Params, opt: Moments, context: tuple[Any, ...]) -> tuple[Params, Moments]:
        theta, buffers, v, h, eps, ratio_B, rate, *scale = context
        held = phi

        def loss(phi: Params) -> tuple[Tensor, Any]:
            model_v = call(self.generator, part(phi, GENERATOR), "decode", h, [])
            return self.lower(theta, phi, held, buffers, v, model_v, h, eps, ratio_B)

        gradient, _ = grad(loss, phi, *(scale or [None]))
        if self.options.sync == "global":
            gradient = collectives.differentiable_mean(gradient)
        return self.lower_optimizer.step(phi, gradient, opt, rate)

    # The lower level.

    def lower_gradient(
        self, state: State, v: Tensor, fake: Generated, h: Tensor, eps: Tensor, ratio_B: Tensor
    ) -> tuple[Params, Params, Info]:
        """(dJ/dphi, buffers with the batch statistics of the passes, what is logged) from a pass of the generator."""

        def lower(inputs: tuple[Params, Tensor]) -> tuple[Tensor, Any]:
            phi, model_v = inputs
            return self.lower(state.theta, phi, state.phi, state.buffers, v, model_v, h, eps, ratio_B)

        scale = loss_scale(state)
        (gradient, slope), (encoded, decoded, info) = grad(lower, (state.phi, fake.v), scale)
        for name, g in fake.pull(slope if scale is None else slope * scale).items():
            gradient[name] = gradient[name] + (g if scale is None else g / scale)
        buffers = blended(self.after_lower(state), GENERATOR, self.generator, fake.seen)
        for prefix, net, seen in ((ENCODER, self.encoder, encoded), (GENERATOR, self.generator, decoded)):
            buffers = blended(buffers, prefix, net, seen) if seen else buffers
        return gradient, buffers, info

    def lower(
        self,
        theta: Params,
        phi: Params,
        held: Params,
        buffers: Params,
        v: Tensor,
        model_v: Tensor,
        h: Tensor,
        eps: Tensor,
        ratio_B: Tensor,
    ) -> tuple[Tensor, tuple[Seen, Seen, Info]]:
        """J(phi), with what encoder and generator saw of the data, and what is logged.

        `held` has the values of phi; an offset D reads its encoder there, so that d/dphi misses it and only that."""
        energies = self.passes(ENERGY, theta, buffers, self.energy_passes)
        encoders = self.passes(ENCODER, phi, buffers, self.encoder_passes)
        loss = self._energy(theta, energies[0], model_v, h).mean()
        encoded: Seen = []
        decoded: Seen = []
        info: Info = {}
        if self.options.joint or self.options.divergence == "symmetric":
            p = self._encode(phi, encoders[0], v, encoded)
            h_q = self.encoder.rsample(p, eps)
        if self.options.joint:
            loss = loss + (self._energy(theta, energies[-1], v, h_q) + self.encoder.log_prob(p, h_q)).mean()
        if self.options.divergence == "symmetric":
            rebuilt = call(self.generator, part(phi, GENERATOR), "decode", h_q, decoded)
            error_B = squared_error(v, rebuilt)
            loss = loss + (ratio_B * (error_B + prior_kl(p))).mean()
            info["reconstruction"] = error_B.detach().mean() / v[0].numel()
        if self.options.opposite != "none":
            p = self._encode(held if self.options.opposite == "offset" else phi, encoders[-1], model_v, [])
            divergence = self.latent_divergence(p, h)
            loss = loss + divergence
            info["latent"] = divergence.detach()
        return loss, (encoded, decoded, info | {"lower": loss.detach()})

    def latent_divergence(self, p: tuple[Tensor, Tensor], h: Tensor) -> Tensor:
        """D = -E log q(h|v~) up to a constant, or the squared error of q's mean, as a mean or a sum over units."""
        if self.options.latent_term == "density":
            return -self.options.latent_weight * self.encoder.log_prob(p, h).mean()
        return self.options.latent_weight * (p[0] - h).square().mean() * (h.shape[-1] / self._terms(h))

    def _terms(self, h: Tensor) -> int:
        """By how many units D is divided."""
        return h.shape[-1] if self.options.latent_term == "mean" else 1

    def importance(self, data_B: Tensor) -> Tensor:
        """r(v) = r' times nothing, a sigmoid or a clamped exponential of mean E - E(v) (Eq. 15), from E(v) [B]."""
        gap_B = collectives.mean(data_B.mean()) - data_B
        if self.options.ratio_bias == "none":
            return torch.full_like(gap_B, self.options.ratio)
        return self.options.ratio * (
            torch.sigmoid(gap_B) if self.options.ratio_bias == "sigmoid" else gap_B.exp().clamp(*CLAMP)
        )

    def validation(self, state: State, v: Tensor, noise: Noise) -> Tensor:
        """The mean squared error of images in [-1, 1] rebuilt from their posterior means, by the running statistics."""
        return squared_error(centred(v), centred(self.reconstruct(state, v))).mean() / v[0].numel()

    def reconstruct(self, state: State, v: Tensor) -> Tensor:
        """G(mean of q(h|v)), as evaluated."""
        return self.decode(state, self.encode(state, v))

    def encode(self, state: State, v: Tensor) -> Tensor:
        """The mean of q(h|v), as evaluated."""
        return self.posterior(state, v)[0]

    def posterior(self, state: State, v: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and log standard deviation of q(h|v), as evaluated."""
        return self._encode(state.phi, state.buffers, centred(v), None)

    def decode(self, state: State, h: Tensor) -> Tensor:
        """G(h), as evaluated."""
        return 0.5 + 0.5 * call(self.generator, part(state.phi | state.buffers, GENERATOR), "decode", h)

    def marginal_energy(self, state: State, v: Tensor) -> Tensor:
        """E(v) [B]; of a joint energy, whose marginal nobody knows, E(v, mean of q(h|v))."""
        h = self.encode(state, v) if self.options.joint else v.new_empty(len(v), 0)
        return self._energy(state.theta, state.buffers, centred(v), h)

    def _energy(self, theta: Params, buffers: Params, v: Tensor, h: Tensor) -> Tensor:
        return call(self.energy, theta | part(buffers, ENERGY), "energy", v, h)

    def _encode(self, phi: Params, buffers: Params, v: Tensor, seen: Seen | None) -> tuple[Tensor, Tensor]:
        return call(self.encoder, part(phi | buffers, ENCODER), "params", v, seen)


def loss_scale(state: State) -> Tensor | None:
    """Of losses and their gradients; in fp16 only."""
    return state.scale.get("value")


def centred(v: Tensor) -> Tensor:
    """Images of [0, 1] in [-1, 1]."""
    return 2 * v - 1


def squared_error(v: Tensor, rebuilt: Tensor) -> Tensor:
    """|v - v'|^2 [B]; its graph holds the two and nothing more."""
    return F.mse_loss(rebuilt, v, reduction="none").flatten(1).sum(-1)


def prior_kl(p: tuple[Tensor, Tensor]) -> Tensor:
    """KL(N(mean, std^2) || N(0, I)) [B]."""
    mean_BH, log_std_BH = p
    return 0.5 * (mean_BH.square() + torch.exp(2 * log_std_BH) - 1 - 2 * log_std_BH).sum(-1)


def _named(prefix: str, tree: Params) -> Params:
    return {prefix + name: p for name, p in tree.items()}
