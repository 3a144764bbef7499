"""One training step of BiDVL: theta by the upper level, then phi at the moved theta."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from eblvm.engine.autodiff import collectives
from eblvm.engine.autodiff.mixed_precision import SMALLEST, next_scale
from eblvm.engine.methods.bidvl import BidvlObjective, Generated, centred, loss_scale
from eblvm.engine.methods.types import Info, Noise, Rates, State
from eblvm.engine.methods.update import Update
from eblvm.engine.optim.optimizers import AdamState, averaged
from eblvm.engine.types import Params
from eblvm.kernels.adam_unroll import all_finite


@dataclass(frozen=True)
class AlternatingUpdate(Update):
    """theta by the upper level, then K steps of phi at the moved theta; the first pass of the generator serves both.

    In fp16 a gradient that overflowed leaves its own parameters and buffers where they are."""

    objective: BidvlObjective

    @torch.no_grad()
    def __call__(self, state: State, v: Tensor, noise: Noise, rates: Rates) -> tuple[State, Info]:
        objective, v = self.objective, centred(v)
        scale, finite = loss_scale(state), Finite()
        state = objective.refreshed(state)
        fake = objective.generated(state.phi, noise["h"][0])
        state, data_B, info = self._move_energy(state, v, fake, noise, rates, finite)
        if objective.options.opposite in ("complete", "literal"):
            state = self._move_encoder(state, fake.v.detach(), noise["h"][0], rates, finite)
        ratio_B = objective.importance(data_B)
        for k in range(objective.options.K):
            if k:
                fake = objective.generated(state.phi, noise["h"][k])
            gradient, buffers, lower = objective.lower_gradient(state, v, fake, noise["h"][k], noise["eps"][k], ratio_B)
            gradient, lower = collectives.mean((gradient, lower))
            if finite.allows((gradient, buffers), scale):
                phi, phi_opt = self._moved(state.phi, gradient, state.phi_opt, rates)
                state = state._replace(phi=phi, phi_opt=phi_opt, buffers=buffers)
        phi_ema = averaged(state.phi_ema, state.phi, self.ema_decay, self.in_place)
        if scale is not None:
            state = state._replace(scale=next_scale(state.scale, torch.tensor(finite.so_far, device=v.device)))
            info = info | {"loss_scale": scale, "skipped": torch.full_like(scale, not finite.all_allowed)}
        return state._replace(phi_ema=phi_ema), info | lower

    def _move_energy(
        self, state: State, v: Tensor, fake: Generated, noise: Noise, rates: Rates, finite: "Finite"
    ) -> tuple[State, Tensor, Info]:
        """The upper level's step. Its gradient ends here: it is not to live through the lower level."""
        gradient, data_B, info = self.objective.upper_gradient(state, v, fake, noise, rates)
        gradient, info = collectives.mean((gradient, info))
        if finite.allows(gradient, loss_scale(state)):
            state = self.objective.after_upper(state)
            state, info = self.move_theta(state, gradient, info, rates)
        return state, data_B, info

    def _move_encoder(self, state: State, model_v: Tensor, h: Tensor, rates: Rates, finite: "Finite") -> State:
        """The upper level's step on the encoder. It is not counted in Adam's steps, which the generator shares."""
        scale = loss_scale(state)
        gradient = self.objective.encoder_gradient(state.phi, state.buffers, model_v, h, scale)
        gradient = collectives.mean(gradient)
        if not finite.allows(gradient, scale):
            return state
        moments = state.phi_opt
        assert isinstance(moments, AdamState)
        m, v = ({k: tree[k] for k in gradient if k in tree} for tree in (moments.m, moments.v))
        own = AdamState(m, v, moments.step_count)
        phi, own = self._moved({k: state.phi[k] for k in gradient}, gradient, own, rates)
        phi_opt = AdamState(moments.m | own.m, moments.v | own.v, moments.step_count)
        return state._replace(phi=state.phi | phi, phi_opt=phi_opt)

    def _moved(self, phi: Params, gradient: Params, moments: Any, rates: Rates) -> tuple[Params, AdamState]:
        phi, moved, _ = self.objective.lower_optimizer.move(phi, gradient, moments, rates["phi"], self.in_place)
        return phi, moved


class Finite:
    """Were all gradients of a step finite, in fp16? Each is asked for before it is used: the host waits."""

    def __init__(self) -> None:
        self.so_far = self.all_allowed = True

    def allows(self, tree: Any, scale: Tensor | None) -> bool:
        """May these gradients be used? All may without a scale, or at the smallest one: it made no overflow."""
        if scale is None:
            return True
        finite = bool(all_finite(tree_leaves(tree)))
        allowed = finite or bool(scale <= SMALLEST)
        self.so_far &= finite
        self.all_allowed &= allowed
        return allowed
