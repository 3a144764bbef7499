"""Gradients on a GRBM in closed form: no autograd graph, and replicas, the leading axes of tensors, without vmap.

`ScoreMatching.gradient` is the specification; these equal it to rounding. BiDSM with a linear q is made by
`kernels/grbm_bilevel`, with a Newton step by `kernels/grbm_dsm`. For VaGES and importance sampling, with h binary,
s_i = grad_v log p~(v, h_i) = W h_i - (v-b)/sigma^2 and grad_W log p~ = v h_i^T. Against a loss's cotangent r on the
score

    W: r^T hbar + v^T sum_i w_i h_i,   c: sum_i w_i h_i,   b: r/sigma^2,   log sigma: 2 r (v-b)/sigma^2,

w_i = <r W, h_i - hbar> / (L-1) for VaGES. Importance sampling has weights a_i ~ p~(v, h_i) / q(h_i|v) where VaGES has
1/L, and w_i = a_i <r W, h_i - hbar>.
Shape tags: L samples, B batch, D visible, H latent units.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import torch

from eblvm.engine import nets as modules
from eblvm.engine.methods.base import Gradient, Info, Nets, Noise, Rates, State
from eblvm.engine.methods.estimates import Loss
from eblvm.engine.methods.losses.dsm import Dsm
from eblvm.engine.methods.losses.ksd import Ksd
from eblvm.engine.methods.lower_level import Kl, KlExact
from eblvm.engine.optim.adam import Adam
from eblvm.engine.optim.base import Moments
from eblvm.engine.types import Params
from eblvm.kernels import grbm_bilevel, grbm_dsm

if TYPE_CHECKING:
    from torch import Tensor

    from eblvm.engine.autodiff import Finish
    from eblvm.engine.methods.bism import Bism
    from eblvm.engine.methods.importance import Importance
    from eblvm.engine.methods.lower_level import LowerLevel
    from eblvm.engine.methods.vages import Vages
    from eblvm.engine.nets import Bernoulli

WEIGHT, BIAS = "net.0.weight", "net.0.bias"


def exact_gradient_for(loss: Loss, nets: Nets, device: torch.device, dtype: torch.dtype) -> Gradient | None:
    """Return the fused gradient of a loss of the exact score on these nets, or None if it has none there."""
    if type(nets.energy) is not modules.GRBM or not grbm_dsm.serves(device, dtype):
        return None
    if isinstance(loss, Dsm):
        return partial(_dsm_gradient, loss)
    return partial(_ksd_gradient, loss) if isinstance(loss, Ksd) else None


def sampled_gradient_for(
    estimator: Vages | Importance, loss: Loss, nets: Nets, device: torch.device, dtype: torch.dtype
) -> Gradient | None:
    """Return the fused gradient of samples from a linear posterior, or None if it has none on these nets."""
    sigma = loss.sigma if isinstance(loss, Dsm) else 0.0
    settings = linear_settings(estimator, nets, device, dtype, sigma)
    if not isinstance(loss, Dsm | Ksd) or settings is None:
        return None
    weighed = _vages if estimator.kind == "vages" else _importance
    return partial(_sampled_gradient, weighed, settings, estimator, loss, nets)


def bism_gradient_for(bism: Bism, loss: Loss, nets: Nets, device: torch.device, dtype: torch.dtype) -> Gradient | None:
    """Return the fused gradient of this product on these nets, or None if it has none there. Its graph must be one that
    nobody asks to be rebuilt, and the posterior one that is learned."""
    if not isinstance(loss, Dsm) or bism.posterior.exact:
        return None
    settings = linear_settings(bism, nets, device, dtype, loss.sigma)
    if settings is None or (bism.best_response.unrolls and bism.unroll_memory != "store"):
        return None
    sgd = bism.unroll_optimizer == "sgd"
    settings = settings._replace(N=bism.unrolled, sgd=sgd, auto_rate=bism.automatic_step)
    return partial(_bism_gradient if bism.best_response.unrolls else _newton_gradient, settings)


def _newton_gradient(
    settings: grbm_bilevel.Settings, state: State, v: Tensor, noise: Noise, rates: Rates, finish: Finish | None = None
) -> tuple[Params, State, Info]:
    """Return DSM's own gradient after the real steps on q. A Newton step on the logits of q is p(h|v) itself, where
    BiSM's estimate is the exact score (Theorem 1)."""
    state, info = lower_steps(settings, state, v, noise["perturb"], noise, rates)
    value, gradient = grbm_dsm.grbm_dsm(v, noise["perturb"][-1], **state.theta.params, sigma=settings.sigma)
    return gradient._asdict(), state, info | {"loss": value}


def _bism_gradient(
    settings: grbm_bilevel.Settings, state: State, v: Tensor, noise: Noise, rates: Rates, finish: Finish | None = None
) -> tuple[Params, State, Info]:
    latents = [latent.select(-2, 0) for latent in (noise["latent"][-1:] if settings.exact else noise["latent"])]
    theta = grbm_bilevel.Theta(**state.theta.params)
    result = grbm_bilevel.grbm_bilevel(
        v, noise["perturb"], latents, theta, packed(state), rates["phi"], rates["unroll"], settings
    )
    info = {"loss": result.loss} | ({"lower": result.lower} if settings.K else {})
    return result.gradient._asdict(), unpacked(state, result.phi), info


def linear_settings(
    lower: LowerLevel, nets: Nets, device: torch.device, dtype: torch.dtype, sigma: float
) -> grbm_bilevel.Settings | None:
    """Return what the kernels need to make these steps on q, or None if they do not make them. They do for a GRBM,
    linear logits, the KL with one sample or in closed form, and plain Adam."""
    q, divergence, adam = nets.posterior, lower.divergence, nets.phi_optimizer
    if type(nets.energy) is not modules.GRBM or type(q) is not modules.Bernoulli or len(q.net) != 1:
        return None
    known = type(divergence) is KlExact or (type(divergence) is Kl and divergence.latent_samples == 1)
    if not known or type(adam) is not Adam or adam.clip_norm is not None or adam.weight_decay:
        return None
    if not grbm_bilevel.serves(device, dtype):
        return None
    return grbm_bilevel.Settings(
        K=lower.K, sigma=sigma, tau=q.temperature, exact=not divergence.reads_samples, rule=adam.rule
    )


def _dsm_gradient(
    loss: Dsm, state: State, v: Tensor, noise: Noise, rates: Rates, finish: Finish | None = None
) -> tuple[Params, State, Info]:
    value, gradient = grbm_dsm.grbm_dsm(v, noise["perturb"][0], **state.theta.params, sigma=loss.sigma)
    return gradient._asdict(), state, {"loss": value}


def _ksd_gradient(
    loss: Ksd, state: State, v_BD: Tensor, noise: Noise, rates: Rates, finish: Finish | None = None
) -> tuple[Params, State, Info]:
    """Return the gradient by the mean and the covariance of p(h|v) itself."""
    at = GrbmAt.of(state.theta.params, v_BD)
    mean_BH = torch.sigmoid(v_BD @ at.W + at.c.unsqueeze(-2))
    value, r_BD = cotangent(loss, v_BD, mean_BH @ at.W.mT - at.away, v_BD)
    back_BH = (r_BD @ at.W) * mean_BH * (1 - mean_BH)
    return at.gradient(r_BD, mean_BH, back_BH), state, {"loss": value}


def _sampled_gradient(
    weighed: Callable[..., Weighed], settings: grbm_bilevel.Settings, estimator: Vages | Importance, loss: Dsm | Ksd,
    nets: Nets, state: State, v_BD: Tensor, noise: Noise, rates: Rates, finish: Finish | None = None,
) -> tuple[Params, State, Info]:  # fmt: skip
    # Without noise the one perturbation, of size zero, may be anything.
    perturb = noise["perturb"] or [v_BD]
    state, info = lower_steps(settings, state, v_BD, perturb, noise, rates)
    v_BD = v_BD + settings.sigma * perturb[-1] if settings.sigma else v_BD
    at = GrbmAt.of(state.theta.params, v_BD)
    phi = state.phi.params
    A_HD, a_H = (at.W.mT, at.c) if estimator.posterior.exact else (phi[WEIGHT], phi[BIAS])
    logits_BH = v_BD @ A_HD.mT + a_H.unsqueeze(-2)
    samples_LBH = noise["samples"].movedim(-2, -3)
    (value, r_BD), mean_BH, w_LB, h_LBH = weighed(
        estimator, nets.posterior, at, A_HD, logits_BH, samples_LBH, partial(cotangent, loss, v_BD, eps_BD=perturb[-1])
    )
    back_BH = (w_LB.unsqueeze(-1) * h_LBH).sum(-3)
    return at.gradient(r_BD, mean_BH, back_BH), state, info | {"loss": value}


class GrbmAt(NamedTuple):
    """A GRBM at a batch."""

    v: Tensor  # [B, D]
    W: Tensor  # [D, H]
    c: Tensor  # [H]
    precision: Tensor  # 1 / sigma^2 [1, D]
    away: Tensor  # (v - b) / sigma^2 [B, D]

    @classmethod
    def of(cls, theta: Params, v_BD: Tensor) -> GrbmAt:
        precision_D = torch.exp(-2 * theta["log_sigma"]).unsqueeze(-2)
        return cls(v_BD, theta["W"], theta["c"], precision_D, (v_BD - theta["b"].unsqueeze(-2)) * precision_D)

    def gradient(self, r_BD: Tensor, mean_BH: Tensor, back_BH: Tensor) -> Params:
        return {
            "W": r_BD.mT @ mean_BH + self.v.mT @ back_BH,
            "b": (r_BD * self.precision).sum(-2),
            "c": back_BH.sum(-2),
            "log_sigma": (2 * r_BD * self.away).sum(-2),
        }


Cotangent = Callable[..., "tuple[Tensor, Tensor]"]  # of the score: (loss, its derivative r by the score)
Weighed = tuple["tuple[Tensor, Tensor]", "Tensor", "Tensor", "Tensor"]  # (loss, r), hbar, w_i, and the h_i of those w_i


def _vages(
    vages: Vages, q: Bernoulli, at: GrbmAt, A_HD: Tensor, logits_BH: Tensor, samples_LBH: Tensor, cotangent: Cotangent
) -> Weighed:
    h_LBH = q.sample(logits_BH.unsqueeze(-3), samples_LBH)
    of_value, of_slope, of_covariance = h_LBH.chunk(3, -3) if vages.independent else (h_LBH,) * 3
    mean_BH = of_value.mean(-3)
    score_BD = mean_BH @ at.W.mT - at.away
    if vages.control_variate:
        score_BD = score_BD - (mean_BH - torch.sigmoid(logits_BH)) @ A_HD
    value, r_BD = cotangent(score_BD)
    along_LB = ((r_BD @ at.W).unsqueeze(-3) * of_covariance).sum(-1)
    scale = 0.0 if vages.covariance == "none" else 1 / (vages.L - (vages.covariance == "unbiased"))
    w_LB = scale * (along_LB - along_LB.mean(-2, keepdim=True))
    return (value, r_BD), of_slope.mean(-3), w_LB, of_covariance


def _importance(
    importance: Importance, q: Bernoulli, at: GrbmAt, A_HD: Tensor, logits_BH: Tensor, samples_LBH: Tensor,
    cotangent: Cotangent,
) -> Weighed:  # fmt: skip
    logits_BH = torch.zeros_like(logits_BH) if importance.uniform else logits_BH
    h_LBH = q.sample(logits_BH.unsqueeze(-3), samples_LBH)
    x_BH, log_normaliser_B = at.v @ at.W + at.c.unsqueeze(-2), torch.nn.functional.softplus(logits_BH).sum(-1)
    log_ratio_LB = (h_LBH * (x_BH - logits_BH).unsqueeze(-3)).sum(-1) + log_normaliser_B.unsqueeze(-2)
    a_LB = torch.softmax(log_ratio_LB, -2)
    mean_BH = (a_LB.unsqueeze(-1) * h_LBH).sum(-3)
    value, r_BD = cotangent(mean_BH @ at.W.mT - at.away)
    along_LB = ((r_BD @ at.W).unsqueeze(-3) * h_LBH).sum(-1)
    return (value, r_BD), mean_BH, a_LB * (along_LB - (a_LB * along_LB).sum(-2, keepdim=True)), h_LBH


def lower_steps(
    settings: grbm_bilevel.Settings, state: State, v_BD: Tensor, perturb: list[Tensor], noise: Noise, rates: Rates
) -> tuple[State, Info]:
    """Make the K real steps on q, by `kernels/grbm_bilevel`."""
    K, theta = settings.K, grbm_bilevel.Theta(**state.theta.params)
    if not K:
        return state, {}
    perturb = perturb if len(perturb) == 1 else perturb[:K]
    latents = [] if settings.exact else [latent.select(-2, 0) for latent in noise["latent"][:K]]
    phi, divergence = grbm_bilevel.lower_steps(v_BD, perturb, latents, theta, packed(state), rates["phi"], settings)
    return unpacked(state, phi), {"lower": divergence}


def packed(state: State) -> grbm_bilevel.Phi:
    """Return a linear posterior and its moments as the kernel takes them."""
    params, (m, v, step_count), _ = state.phi
    return grbm_bilevel.Phi._make([*(tree[name] for tree in (params, m, v) for name in (WEIGHT, BIAS)), step_count])


def unpacked(state: State, moved: grbm_bilevel.Phi) -> State:
    """Return the state with the posterior that the kernel gives."""
    A, a, mA, ma, vA, va, step_count = moved
    moments = Moments({WEIGHT: mA, BIAS: ma}, {WEIGHT: vA, BIAS: va}, step_count)
    return state._replace(phi=state.phi._replace(params={WEIGHT: A, BIAS: a}, moments=moments))


def cotangent(loss: Dsm | Ksd, v_BD: Tensor, score_BD: Tensor, eps_BD: Tensor) -> tuple[Tensor, Tensor]:
    """Return the loss, a mean over the batch, and its derivative by the score."""
    if isinstance(loss, Dsm):
        residual_BD = score_BD + eps_BD / loss.sigma
        return 0.5 * residual_BD.square().sum(-1).mean(-1), residual_BD / v_BD.shape[-2]
    (x, y), (s_x, s_y) = loss.halves(v_BD), loss.halves(score_BD)
    k, distance = loss.kernel(x, y)
    precision, pairs = loss.kernel_width**-2, k.shape[-1] ** 2
    # d/ds(v) = mean over v' of k (s(v') + (v - v')/w^2); d/ds(v') alike.
    r_x = (k @ (s_y - precision * y) + precision * x * k.sum(-1, keepdim=True)) / pairs
    r_y = (k.mT @ (s_x - precision * x) + precision * y * k.sum(-2).unsqueeze(-1)) / pairs
    # Linear in each half's scores: the value is what the two derivatives leave of the scores, and the trace.
    trace = (k * (precision * x.shape[-1] - precision**2 * distance)).sum((-2, -1)) / pairs
    of_y = (s_y * (y * k.sum(-2).unsqueeze(-1) - k.mT @ x)).sum((-2, -1))
    value = (r_x * s_x).sum((-2, -1)) + precision * of_y / pairs
    r_BD = torch.cat([r_x, r_y], -2)
    return value + trace, torch.cat([r_BD, torch.zeros_like(v_BD[..., r_BD.shape[-2] :, :])], -2)
