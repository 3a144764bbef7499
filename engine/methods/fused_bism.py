"""BiDSM on a GRBM with a linear q, without autograd: `kernels/grbm_bilevel`; with a Newton step `kernels/grbm_dsm`.

`ScoreMatching.gradient` is the specification; these equal it to rounding and are faster. Leading axes of all tensors
are replicas.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, cast

from eblvm.engine.methods.fused_sampled import linear_lower_level, lower_steps, packed, unpacked
from eblvm.engine.methods.losses.dsm import Dsm
from eblvm.kernels import grbm_bilevel, grbm_dsm

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from eblvm.engine.autodiff.derivatives import Finish
    from eblvm.engine.methods.base import Gradient, Info, Loss, Nets, Noise, Rates, State
    from eblvm.engine.methods.bism import Bism
    from eblvm.engine.nets import Bernoulli
    from eblvm.engine.optim.adam import Adam
    from eblvm.engine.types import Params


def gradient_for(bism: Bism, loss: Loss, nets: Nets, device: torch.device, dtype: torch.dtype) -> Gradient | None:
    """Return the fused gradient of this product on these nets, or None if it has none there.

    Its graph must be one that nobody asks to be rebuilt, and the posterior one that is learned.
    """
    if not isinstance(loss, Dsm) or bism.posterior.exact or not linear_lower_level(bism, nets, device, dtype):
        return None
    if not bism.best_response.unrolls:
        return partial(_newton_gradient, bism, loss.sigma, nets)
    return partial(_gradient, bism, loss.sigma, nets) if bism.unroll_memory == "store" else None


def _newton_gradient(
    bism: Bism, sigma: float, nets: Nets, state: State, v: Tensor, noise: Noise, rates: Rates,
    finish: Finish | None = None,
) -> tuple[Params, State, Info]:  # fmt: skip
    """Return DSM's own gradient after the real steps on q.

    A Newton step on the logits of q is p(h|v) itself, where BiSM's estimate is the exact score (Theorem 1).
    """
    state, info = lower_steps(bism, nets, state, v, noise["perturb"], sigma, noise, rates)
    value, gradient = grbm_dsm.grbm_dsm(v, noise["perturb"][-1], **state.theta.params, sigma=sigma)
    return gradient._asdict(), state, info | {"loss": value}


def _gradient(
    bism: Bism, sigma: float, nets: Nets, state: State, v: Tensor, noise: Noise, rates: Rates,
    finish: Finish | None = None,
) -> tuple[Params, State, Info]:  # fmt: skip
    exact = not bism.divergence.reads_samples
    latents = noise["latent"][-1:] if exact else noise["latent"]
    result = grbm_bilevel.grbm_bilevel(
        v,
        noise["perturb"],
        [latent.select(-2, 0) for latent in latents],
        grbm_bilevel.Theta(**state.theta.params),
        packed(state),
        rates["phi"],
        rates["unroll"],
        K=bism.K,
        N=bism.unrolled,
        sigma=sigma,
        tau=cast("Bernoulli", nets.posterior).temperature,
        exact=exact,
        sgd=bism.unroll_optimizer == "sgd",
        auto_rate=bism.automatic_step,
        rule=cast("Adam", nets.phi_optimizer).rule,
    )
    info = {"loss": result.loss} | ({"lower": result.lower} if bism.K else {})
    return result.gradient._asdict(), unpacked(state, result.phi), info
