"""One training step of BiDVL: theta by the upper level, then phi at the moved theta."""

from dataclasses import dataclass

import torch
from torch import Tensor

from eblvm.engine.autodiff import collectives
from eblvm.engine.methods.bidvl import BidvlObjective, Generated, centred
from eblvm.engine.methods.types import Info, Noise, Rates, State
from eblvm.engine.methods.update import Update
from eblvm.engine.optim.optimizers import AdamState, averaged


@dataclass(frozen=True)
class AlternatingUpdate(Update):
    """theta by the upper level, then K steps of phi at the moved theta; the first pass of the generator serves both."""

    objective: BidvlObjective

    @torch.no_grad()
    def __call__(self, state: State, v: Tensor, noise: Noise, rates: Rates) -> tuple[State, Info]:
        objective, v = self.objective, centred(v)
        state = objective.refreshed(state)
        fake = objective.generated(state.phi, noise["h"][0])
        state, data_B, info = self._move_energy(state, v, fake, noise, rates)
        if objective.options.opposite in ("complete", "literal"):
            state = self._move_encoder(state, fake.v.detach(), noise["h"][0], rates)
        ratio_B = objective.importance(data_B)
        for k in range(objective.options.K):
            if k:
                fake = objective.generated(state.phi, noise["h"][k])
            gradient, buffers, lower = objective.lower_gradient(state, v, fake, noise["h"][k], noise["eps"][k], ratio_B)
            gradient, lower = collectives.mean((gradient, lower))
            phi, phi_opt, _ = objective.lower_optimizer.move(
                state.phi, gradient, state.phi_opt, rates["phi"], self.in_place
            )
            state = state._replace(phi=phi, phi_opt=phi_opt, buffers=buffers)
        phi_ema = averaged(state.phi_ema, state.phi, self.ema_decay, self.in_place)
        return state._replace(phi_ema=phi_ema), info | lower

    def _move_energy(
        self, state: State, v: Tensor, fake: Generated, noise: Noise, rates: Rates
    ) -> tuple[State, Tensor, Info]:
        """The upper level's step. Its gradient ends here: it is not to live through the lower level."""
        gradient, data_B, info = self.objective.upper_gradient(state, v, fake, noise, rates)
        state = self.objective.after_upper(state)
        gradient, info = collectives.mean((gradient, info))
        state, info = self.move_theta(state, gradient, info, rates)
        return state, data_B, info

    def _move_encoder(self, state: State, model_v: Tensor, h: Tensor, rates: Rates) -> State:
        """The upper level's step on the encoder. It is not counted in Adam's steps, which the generator shares."""
        gradient = collectives.mean(self.objective.encoder_gradient(state.phi, state.buffers, model_v, h))
        moments = state.phi_opt
        assert isinstance(moments, AdamState)
        m, v = ({k: tree[k] for k in gradient if k in tree} for tree in (moments.m, moments.v))
        own = AdamState(m, v, moments.step_count)
        phi, own, _ = self.objective.lower_optimizer.move(
            {k: state.phi[k] for k in gradient}, gradient, own, rates["phi"], self.in_place
        )
        phi_opt = AdamState(moments.m | own.m, moments.v | own.v, moments.step_count)
        return state._replace(phi=state.phi | phi, phi_opt=phi_opt)
