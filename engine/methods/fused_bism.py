"""BiDSM on a GRBM with a linear q, without autograd: `kernels/grbm_bilevel`; with a Newton step `kernels/grbm_dsm`.

`ScoreMatching.gradient` is the specification; these equal it to rounding and are faster. Leading axes of all tensors
are replicas.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from eblvm.engine.methods.base import Gradient, Info, Nets, Noise, Rates, State
from eblvm.engine.methods.estimates import Loss
from eblvm.engine.methods.fused_sampled import linear_settings, lower_steps, packed, unpacked
from eblvm.engine.methods.losses.dsm import Dsm
from eblvm.engine.types import Params
from eblvm.kernels import grbm_bilevel, grbm_dsm

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from eblvm.engine.autodiff.derivatives import Finish
    from eblvm.engine.methods.bism import Bism


def gradient_for(bism: Bism, loss: Loss, nets: Nets, device: torch.device, dtype: torch.dtype) -> Gradient | None:
    """Return the fused gradient of this product on these nets, or None if it has none there.

    Its graph must be one that nobody asks to be rebuilt, and the posterior one that is learned.
    """
    if not isinstance(loss, Dsm) or bism.posterior.exact:
        return None
    settings = linear_settings(bism, nets, device, dtype, loss.sigma)
    if settings is None or (bism.best_response.unrolls and bism.unroll_memory != "store"):
        return None
    sgd = bism.unroll_optimizer == "sgd"
    settings = settings._replace(N=bism.unrolled, sgd=sgd, auto_rate=bism.automatic_step)
    return partial(_gradient if bism.best_response.unrolls else _newton_gradient, settings)


def _newton_gradient(
    settings: grbm_bilevel.Settings, state: State, v: Tensor, noise: Noise, rates: Rates, finish: Finish | None = None
) -> tuple[Params, State, Info]:
    """Return DSM's own gradient after the real steps on q.

    A Newton step on the logits of q is p(h|v) itself, where BiSM's estimate is the exact score (Theorem 1).
    """
    state, info = lower_steps(settings, state, v, noise["perturb"], noise, rates)
    value, gradient = grbm_dsm.grbm_dsm(v, noise["perturb"][-1], **state.theta.params, sigma=settings.sigma)
    return gradient._asdict(), state, info | {"loss": value}


def _gradient(
    settings: grbm_bilevel.Settings, state: State, v: Tensor, noise: Noise, rates: Rates, finish: Finish | None = None
) -> tuple[Params, State, Info]:
    latents = [latent.select(-2, 0) for latent in (noise["latent"][-1:] if settings.exact else noise["latent"])]
    theta = grbm_bilevel.Theta(**state.theta.params)
    result = grbm_bilevel.grbm_bilevel(
        v, noise["perturb"], latents, theta, packed(state), rates["phi"], rates["unroll"], settings
    )
    info = {"loss": result.loss} | ({"lower": result.lower} if settings.K else {})
    return result.gradient._asdict(), unpacked(state, result.phi), info
