"""Importance sampling of the marginal, the baseline of VaGES (Bao et al. 2021)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from eblvm.engine import autodiff
from eblvm.engine.errors import UserError
from eblvm.engine.methods import fused_grbm
from eblvm.engine.methods.base import Gradient, Nets, Noise, Rates
from eblvm.engine.methods.estimates import Batch, Features, Loss, ScoreEstimate
from eblvm.engine.methods.vages import SampledEstimator
from eblvm.engine.options import option
from eblvm.engine.types import Params

if TYPE_CHECKING:
    from torch import Tensor

    from eblvm.engine.config import Config


class Importance(SampledEstimator):
    """log p(v) ~ log mean_i p~(v, h_i) / q(h_i|v) and its score, sum_i r_i grad_v log p~(v, h_i), r_i ~ p~ / q. A
    uniform proposal is the posterior with logits of zero in the place of q's."""

    kind = "importance"
    prefix = "is-"
    scales_gradients = False

    proposal: str = option(
        "q", "what they are drawn from: q(h|v), or uniformly from all h", choices=("q", "uniform"), needs="linear_in_h"
    )

    @property
    def uniform(self) -> bool:
        return self.proposal == "uniform"

    def check(self, config: Config) -> None:
        if self.uniform and self.K:
            raise UserError(f"a uniform proposal has nothing to step on, got K={self.K}; use --K 0")
        super().check(config)

    def estimate(
        self, nets: Nets, theta: Params, response: Any, features: Features, batch: Batch, noise: Noise, rates: Rates
    ) -> ScoreEstimate:
        energy, q, v = nets.energy.at(theta), nets.posterior.at(response), batch.v
        with torch.no_grad():
            p = v.new_zeros(len(v), q.latent) if self.uniform else q.params(v)
            h = q.sample(p, noise["samples"].movedim(-2, -3))
            log_q_LB = q.log_prob(p, h)

        def log_density(x: Tensor) -> Tensor:
            return (-energy.energy(x, h) - log_q_LB).logsumexp(0)

        def score() -> Tensor:
            u, _ = autodiff.grad(lambda x: ((-energy.head(x, h) - log_q_LB).logsumexp(0).sum(), ()), features.f)
            return features.pull(u)

        return ScoreEstimate(log_density, score)

    def fused(self, nets: Nets, loss: Loss, device: torch.device, dtype: torch.dtype) -> Gradient | None:
        return fused_grbm.sampled_gradient_for(self, loss, nets, device, dtype)
