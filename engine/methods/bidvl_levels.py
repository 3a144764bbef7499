"""The two levels of BiDVL (Kan et al. 2022): the mathematics of `bidvl.py`.

With h ~ N(0, I), v~ = G(h) and data v:

    upper (Eq. 14)  J(theta) = E E(v) - E E(v~);  hinge (Eq. 23): E relu(1 + E(v)) + E relu(1 - E(v~))
    lower (Eq. 13)  J(phi)   = E E(v~) + E r(v) [|v - G(h_q)|^2 + KL(q(h|v) || N(0, I))] + D,  h_q ~ q(h|v)
                    D = D(p(v, h) || q(h|v)) = -E log q(h|v~), as a function of the generator alone

`opposite` says what becomes of D's gradient for the encoder, +dD in the lower and -dD in the upper level (Eq. 11-12):
`offset` leaves both out, `literal` takes both, `complete` takes the first and puts KL(q(h|v~) || N(0, I)) in the place
of the second (section 4.4), `none` has no D at all. A joint energy (Eq. 4, 6) has E(v~, h) for E(v~), and in both
levels E [E(v, h_q) + log q(h_q|v)] for E(v). Its reverse divergence in the lower level is the weighted term above, with
q in the place of p(h|v), whose samples nobody has. `kl` instead of the symmetric divergence leaves that term out.

Images are in [-1, 1] here. Shape tags: B batch, H latent units.
"""

from __future__ import annotations  # torch.compile does not know how to evaluate those of inner functions

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import torch

from eblvm.engine import autodiff
from eblvm.engine.autodiff import collectives
from eblvm.engine.methods.base import Info, Nets, Noise, Rates, State
from eblvm.engine.nets import batch_norm, spectral
from eblvm.engine.nets import bidvl as bidvl_nets
from eblvm.engine.optim.base import Weights
from eblvm.engine.types import Params

if TYPE_CHECKING:
    from torch import Tensor

    from eblvm.engine.methods.bidvl import Bidvl

ENERGY, ENCODER, GENERATOR = "energy.", "encoder.", "generator."


class Generated(NamedTuple):
    """v~ = G(h), its pullback to the generator's parameters, and what its batch norms saw."""

    v: Tensor
    pull: Callable[..., Params]
    seen: batch_norm.Seen


@dataclass(frozen=True)
class Levels:
    """The objectives of both levels, for the options and the nets of a run: an energy, an encoder and a generator."""

    options: Bidvl
    nets: Nets

    def passes(self, prefix: str, params: Params, buffers: Params, count: int) -> list[Params]:
        """Return the buffers of `count` passes of a net in turn: the same, or each after its own power iteration."""
        if self.options.power_iteration == "step":
            return [buffers] * count
        params = named(prefix, params) if prefix == ENERGY else params
        return spectral.for_passes(params, buffers, prefix, count)

    def after_upper(self, state: State) -> State:
        """Return the state with the buffers that the upper level's passes leave."""
        buffers = self.passes(ENERGY, state.theta.params, state.buffers, 2)[-1]
        if self.options.joint:
            buffers = self.passes(ENCODER, state.phi.params, buffers, 1)[-1]
        return state._replace(buffers=buffers)

    def after_lower(self, state: State) -> Params:
        """Return the buffers that a lower step's passes leave."""
        buffers = self.passes(ENERGY, state.theta.params, state.buffers, self.energy_passes)[-1]
        return self.passes(ENCODER, state.phi.params, buffers, self.encoder_passes)[-1]

    @property
    def energy_passes(self) -> int:
        return 1 + self.options.joint  # of a lower step: the generated images, and the data for a joint energy

    @property
    def encoder_passes(self) -> int:
        """Of a lower step: the data, and the generated images for D."""
        reads_data = self.options.joint or self.options.divergence == "symmetric"
        return max(1, reads_data + (self.options.opposite != "none"))

    def generated(self, phi: Params, h: Tensor) -> Generated:
        def decode(parameters: Params) -> tuple[Tensor, batch_norm.Seen]:
            seen: batch_norm.Seen = []
            return self.nets.generator.at(parameters).decode(h, seen), seen

        (v, seen), pull = autodiff.vjp(decode, bidvl_nets.part(phi, GENERATOR))

        def pulled(u: Tensor, finish: autodiff.Finish | None = None) -> Params:
            return named(GENERATOR, pull((u, [torch.zeros_like(s) for s in seen]), finish=finish))

        return Generated(v, pulled, seen)

    def upper_gradient(
        self,
        state: State,
        v: Tensor,
        fake: Generated,
        noise: Noise,
        rates: Rates,
        finish: autodiff.Finish | None = None,
    ) -> tuple[Params, Tensor, Info]:
        """Return (dJ/dtheta, the energies of the data [B], what is logged); N unrolled steps carry its gradient."""
        h, eps = noise["h"][0], noise["eps"][0]

        def upper(theta: Params) -> tuple[Tensor, tuple[Tensor, Info]]:
            phi, model_v = state.phi.params, fake.v.detach()
            if self.options.N:
                phi = self._unrolled(theta, state, v, noise, rates)
                model_v = self.decode(phi, h, [])
            return self.upper(theta, phi, state.buffers, v, model_v, h, eps)

        gradient, (data_B, info) = autodiff.grad(upper, state.theta.params, state.scale.get("value"), finish)
        return gradient, data_B, info

    def upper(
        self, theta: Params, phi: Params, buffers: Params, v: Tensor, model_v: Tensor, h: Tensor, eps: Tensor
    ) -> tuple[Tensor, tuple[Tensor, Info]]:
        """Return J(theta), with the energies of the data and what is logged."""
        h_q, log_q_B = h, v.new_zeros(())
        if self.options.joint:
            p = self.encode(phi, self.passes(ENCODER, phi, buffers, 1)[0], v, [])
            h_q = self.nets.posterior.rsample(p, eps)
            log_q_B = self.nets.posterior.log_prob(p, h_q)
        of_data, of_model = self.passes(ENERGY, theta, buffers, 2)
        if of_data is of_model:
            data_B, model_B = self.energy(theta, of_data, torch.cat([v, model_v]), torch.cat([h_q, h])).chunk(2)
        else:
            data_B, model_B = self.energy(theta, of_data, v, h_q), self.energy(theta, of_model, model_v, h)
        relu = torch.nn.functional.relu
        loss_B = relu(1 + data_B) + relu(1 - model_B) if self.options.upper == "hinge" else data_B - model_B
        loss = (loss_B + log_q_B).mean()
        data_B, model_B = data_B.detach(), model_B.detach()
        info = {"loss": loss.detach(), "energy_data": data_B.mean(), "energy_model": model_B.mean()}
        return loss, (data_B, info)

    def encoder_gradient(
        self,
        phi: Params,
        buffers: Params,
        model_v: Tensor,
        h: Tensor,
        scale: Tensor | None = None,
        finish: autodiff.Finish | None = None,
    ) -> Params:
        """Return the upper level's gradient for the encoder: of KL(q(h|v~) || N(0, I)), or of -D."""

        def loss(encoder: Params) -> tuple[Tensor, tuple[()]]:
            phi = named(ENCODER, encoder)
            p = self.encode(phi, self.passes(ENCODER, phi, buffers, 1)[0], model_v, [])
            if self.options.opposite == "literal":
                return -self.latent_divergence(p, h), ()
            return self.options.latent_weight * prior_kl(p).mean() / self._terms(h), ()

        return named(ENCODER, autodiff.grad(loss, bidvl_nets.part(phi, ENCODER), scale, finish)[0])

    def _unrolled(self, theta: Params, state: State, v: Tensor, noise: Noise, rates: Rates) -> Params:
        ratio_B = torch.full_like(v.flatten(1)[:, 0], self.options.ratio)  # the energies of its bias are not known yet
        scale = state.scale.get("value")
        inner = () if scale is None else (scale.sqrt(),)
        contexts = [
            (theta, state.buffers, v, h, eps, ratio_B, rates["unroll"], *inner)
            for h, eps in zip(noise["h"][self.options.K :], noise["eps"][self.options.K :], strict=True)
        ]
        phi = Weights(state.phi.params, state.phi.moments)
        return autodiff.unroll(self._unrolled_step, phi, contexts, self.options.unroll_memory).params

    def _unrolled_step(self, weights: Weights, context: tuple[Any, ...]) -> Weights:
        theta, buffers, v, h, eps, ratio_B, rate, *scale = context
        held = weights.params

        def loss(phi: Params) -> tuple[Tensor, Any]:
            model_v = self.decode(phi, h, [])
            return self.lower(theta, phi, held, buffers, v, model_v, h, eps, ratio_B)

        gradient, _ = autodiff.grad(loss, held, *(scale or [None]))
        if self.options.sync == "global":
            gradient = collectives.differentiable_mean(gradient)
        return self.nets.unroll_optimizer.step(weights, gradient, rate)

    def lower_gradient(
        self,
        state: State,
        v: Tensor,
        fake: Generated,
        h: Tensor,
        eps: Tensor,
        ratio_B: Tensor,
        finish: autodiff.Finish | None = None,
    ) -> tuple[Params, Params, Info]:
        """Return (dJ/dphi, buffers with the statistics of the passes, what is logged), from a pass of the generator."""
        names = list(state.phi.params)

        def lower(inputs: tuple[Params, Tensor]) -> tuple[Tensor, Any]:
            phi, model_v = inputs
            return self.lower(state.theta.params, phi, state.phi.params, state.buffers, v, model_v, h, eps, ratio_B)

        scale = state.scale.get("value")

        def of_encoder(i: int, g: Tensor) -> Tensor:
            whole = finish is not None and i < len(names) and names[i].startswith(ENCODER)
            return finish(i, g) if whole else g  # type: ignore[misc]

        (gradient, slope), (encoded, decoded, info) = autodiff.grad(
            lower, (state.phi.params, fake.v), scale, finish and of_encoder
        )
        generator = [name for name in names if name.startswith(GENERATOR)]

        def of_both(i: int, g: Tensor) -> Tensor:
            name = generator[i]
            total = gradient[name] + (g if scale is None else g / scale)
            return total if finish is None else finish(names.index(name), total)

        gradient |= fake.pull(slope if scale is None else slope * scale, of_both)
        buffers = batch_norm.blended(self.after_lower(state), GENERATOR, self.nets.generator, fake.seen)
        for prefix, net, seen in ((ENCODER, self.nets.posterior, encoded), (GENERATOR, self.nets.generator, decoded)):
            buffers = batch_norm.blended(buffers, prefix, net, seen) if seen else buffers
        return gradient, buffers, info

    def lower(
        self, theta: Params, phi: Params, held: Params, buffers: Params, v: Tensor, model_v: Tensor, h: Tensor,
        eps: Tensor, ratio_B: Tensor,
    ) -> tuple[Tensor, tuple[batch_norm.Seen, batch_norm.Seen, Info]]:  # fmt: skip
        """Return J(phi), with what encoder and generator saw of the data, and what is logged. `held` has the values of
        phi; an offset D reads its encoder there, so that d/dphi misses it and only that."""
        energies = self.passes(ENERGY, theta, buffers, self.energy_passes)
        encoders = self.passes(ENCODER, phi, buffers, self.encoder_passes)
        loss = self.energy(theta, energies[0], model_v, h).mean()
        encoded: batch_norm.Seen = []
        decoded: batch_norm.Seen = []
        info: Info = {}
        if self.options.joint or self.options.divergence == "symmetric":
            p = self.encode(phi, encoders[0], v, encoded)
            h_q = self.nets.posterior.rsample(p, eps)
        if self.options.joint:
            loss = loss + (self.energy(theta, energies[-1], v, h_q) + self.nets.posterior.log_prob(p, h_q)).mean()
        if self.options.divergence == "symmetric":
            rebuilt = self.decode(phi, h_q, decoded)
            error_B = squared_error(v, rebuilt)
            loss = loss + (ratio_B * (error_B + prior_kl(p))).mean()
            info["reconstruction"] = error_B.detach().mean() / v[0].numel()
        if self.options.opposite != "none":
            p = self.encode(held if self.options.opposite == "offset" else phi, encoders[-1], model_v, [])
            divergence = self.latent_divergence(p, h)
            loss = loss + divergence
            info["latent"] = divergence.detach()
        return loss, (encoded, decoded, info | {"lower": loss.detach()})

    def latent_divergence(self, p: tuple[Tensor, Tensor], h: Tensor) -> Tensor:
        """Return D = -E log q(h|v~) up to a constant, or the squared error of q's mean: a mean or a sum over units."""
        if self.options.latent_term == "density":
            return -self.options.latent_weight * self.nets.posterior.log_prob(p, h).mean()
        return self.options.latent_weight * (p[0] - h).square().mean() * (h.shape[-1] / self._terms(h))

    def _terms(self, h: Tensor) -> int:
        """Return the number of units that D is divided by."""
        return h.shape[-1] if self.options.latent_term == "mean" else 1

    def importance(self, data_B: Tensor) -> Tensor:
        """Return r(v): r' times 1, a sigmoid or an exponential, clamped as released, of mean E - E(v) (Eq. 15)."""
        gap_B = collectives.mean(data_B.mean()) - data_B
        if self.options.ratio_bias == "none":
            return torch.full_like(gap_B, self.options.ratio)
        factor_B = torch.sigmoid(gap_B) if self.options.ratio_bias == "sigmoid" else gap_B.exp().clamp(0.8, 1.2)
        return self.options.ratio * factor_B

    def energy(self, theta: Params, buffers: Params, v: Tensor, h: Tensor) -> Tensor:
        return self.nets.energy.at(theta | bidvl_nets.part(buffers, ENERGY)).energy(v, h)

    def decode(self, phi: Params, h: Tensor, seen: batch_norm.Seen | None) -> Tensor:
        return self.nets.generator.at(bidvl_nets.part(phi, GENERATOR)).decode(h, seen)

    def encode(self, phi: Params, buffers: Params, v: Tensor, seen: batch_norm.Seen | None) -> tuple[Tensor, Tensor]:
        encoder = cast("bidvl_nets.Encoder", self.nets.posterior)
        return encoder.at(bidvl_nets.part(phi | buffers, ENCODER)).params(v, seen)


def centred(v: Tensor) -> Tensor:
    """Return images of [0, 1] in [-1, 1]."""
    return 2 * v - 1


def squared_error(v: Tensor, rebuilt: Tensor) -> Tensor:
    """Return |v - v'|^2 [B], whose graph keeps the two and nothing more."""
    return torch.nn.functional.mse_loss(rebuilt, v, reduction="none").flatten(1).sum(-1)


def prior_kl(p: tuple[Tensor, Tensor]) -> Tensor:
    """Return KL(N(mean, std^2) || N(0, I)) [B]."""
    mean_BH, log_std_BH = p
    return 0.5 * (mean_BH.square() + torch.exp(2 * log_std_BH) - 1 - 2 * log_std_BH).sum(-1)


def named(prefix: str, tree: Params) -> Params:
    return {prefix + name: p for name, p in tree.items()}
