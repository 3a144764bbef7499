"""Steps on a GRBM without autograd, where an objective is of their form: `kernels/grbm_bilevel` for BiDSM,
`kernels/grbm_dsm` for DSM, `grbm_sampled.py` for VaGES and importance sampling.

The generic step in `score_matching.py` is the specification; these equal it to rounding and are faster. `--no-fused`
leaves the generic one.
"""

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor, nn

from eblvm.engine.autodiff.ranges import named
from eblvm.engine.methods.bilevel import BilevelScore, ExactScore
from eblvm.engine.methods.divergences import Kl, KlExact
from eblvm.engine.methods.grbm.sampled import exact_gradient, lower_steps, packed, sampled_gradient, unpacked
from eblvm.engine.methods.losses import Loss
from eblvm.engine.methods.losses.dsm import Dsm
from eblvm.engine.methods.losses.ksd import Ksd
from eblvm.engine.methods.responses import Newton
from eblvm.engine.methods.score_matching import ScoreMatchingObjective
from eblvm.engine.methods.types import Info, Noise, Rates, State
from eblvm.engine.methods.update import Update
from eblvm.engine.methods.vages import SampledScore
from eblvm.engine.nets.grbm import GRBM
from eblvm.engine.nets.posteriors import Bernoulli
from eblvm.engine.optim.optimizers import Adam, Sgd
from eblvm.engine.types import Params
from eblvm.kernels import grbm_bilevel, grbm_dsm

Fused = BilevelScore | SampledScore | ExactScore


def fused_step_for(objective: ScoreMatchingObjective) -> Fused | None:
    """The objective's estimator if its step on a GRBM has a fused form, else None.

    (DSM | KSD) x (exact free energy | VaGES | importance sampling), and DSM x BiSM x (Adam | SGD unroll) whose graph
    nobody asks to be rebuilt. A posterior is linear, its divergence the sampled KL with one sample or the exact one.
    """
    estimator, loss = objective.estimator, objective.loss
    if type(estimator.energy) is not GRBM:
        return None
    if isinstance(estimator, ExactScore):
        return estimator if isinstance(loss, Dsm | Ksd) else None
    posterior, adam = estimator.posterior, estimator.optimizer
    linear = type(posterior) is Bernoulli and len(posterior.net) == 1 and isinstance(posterior.net[0], nn.Linear)
    divergence = estimator.options.divergence
    known = type(divergence) is KlExact or (type(divergence) is Kl and divergence.latent_samples == 1)
    if not linear or not known or type(adam) is not Adam or estimator.options.lower_clip_norm is not None:
        return None
    if isinstance(estimator, SampledScore):
        return estimator if isinstance(loss, Dsm | Ksd) and not estimator.langevin.steps else None
    if not isinstance(estimator, BilevelScore) or not isinstance(loss, Dsm) or estimator.options.posterior.exact:
        return None
    if isinstance(estimator.options.best_response, Newton):
        return estimator
    if estimator.options.unroll_memory != "store":
        return None
    unroll = estimator.unroll_optimizer
    return estimator if type(unroll) is Sgd or unroll == adam else None


def runs_fused(estimator: Fused, state: State, v: Tensor, rates: Rates) -> bool:
    """Is the fused step there for these tensors, and does nobody want to trace or differentiate through it?"""
    kernel = grbm_dsm if isinstance(estimator, ExactScore) else grbm_bilevel
    if not kernel.serves(v.device, v.dtype) or torch.compiler.is_compiling():
        return False
    tensors = (v, *state.theta.values(), *state.phi.values(), *rates.values())
    return not any(t.requires_grad or t.dtype != v.dtype for t in tensors)


def fused_gradient(
    estimator: Fused, loss: Loss, state: State, v: Tensor, noise: Noise, rates: Rates
) -> tuple[Params, State, Info]:
    """What `ScoreMatching.gradient` gives, for an estimator from `fused_step_for`."""
    assert isinstance(loss, Dsm | Ksd)
    if isinstance(estimator, SampledScore):
        return sampled_gradient(estimator, loss, state, v, noise, rates)
    if isinstance(loss, Ksd):
        return exact_gradient(loss, state, v)
    if isinstance(estimator, BilevelScore) and isinstance(estimator.options.best_response, Newton):
        return _newton_gradient(estimator, loss, state, v, noise, rates)
    if isinstance(estimator, BilevelScore):
        return _bilevel_gradient(estimator, loss, state, v, noise, rates)
    value, gradient = grbm_dsm.grbm_dsm(v, noise["perturb"][0], **state.theta, sigma=loss.sigma)
    return gradient._asdict(), state, {"loss": value}


def _newton_gradient(
    estimator: BilevelScore, loss: Dsm, state: State, v: Tensor, noise: Noise, rates: Rates
) -> tuple[Params, State, Info]:
    """A Newton step on the logits of q is p(h|v) itself, where BiSM's estimate is the exact score (Theorem 1): the real
    steps on q, then DSM's own gradient."""
    theta = grbm_bilevel.Theta(**state.theta)
    state, info = lower_steps(estimator, state, theta, v, noise["perturb"], loss.sigma, noise, rates)
    value, gradient = grbm_dsm.grbm_dsm(v, noise["perturb"][-1], **state.theta, sigma=loss.sigma)
    return gradient._asdict(), state, info | {"loss": value}


def _bilevel_gradient(
    estimator: BilevelScore, loss: Dsm, state: State, v: Tensor, noise: Noise, rates: Rates
) -> tuple[Params, State, Info]:
    assert isinstance(estimator.posterior, Bernoulli)
    assert isinstance(estimator.optimizer, Adam)
    exact = not estimator.options.divergence.reads_samples
    latents = noise["latent"][-1:] if exact else noise["latent"]
    settings = grbm_bilevel.Settings(
        K=estimator.options.K,
        N=estimator.options.unrolled,
        sigma=loss.sigma,
        tau=estimator.posterior.temperature,
        exact=exact,
        sgd=isinstance(estimator.unroll_optimizer, Sgd),
        auto_rate=estimator.options.automatic_step,
        rule=estimator.optimizer.rule,
    )
    result = grbm_bilevel.grbm_bilevel(
        v,
        noise["perturb"],
        [latent.select(-3, 0) for latent in latents],
        grbm_bilevel.Theta(**state.theta),
        packed(state),
        rates["phi"],
        rates["unroll"],
        settings,
    )
    info = {"loss": result.loss} | ({"lower": result.lower} if estimator.options.K else {})
    return result.gradient._asdict(), unpacked(state, result.phi), info


TrainingStep = Callable[[State, Tensor, Noise, Rates], tuple[State, Info]]


def fused_update_for(update: Update) -> TrainingStep | None:
    """`update` without autograd for tensors with leading replica axes or without; None where it has no fused form.

    It needs no `vmap`, whose wrapping of every tensor costs more than a step of a small model. Where the fused step
    does not run, it is `update` itself, vmapped if there is a replica axis.
    """
    objective = update.objective
    estimator = fused_step_for(objective) if isinstance(objective, ScoreMatchingObjective) else None
    if estimator is None or not isinstance(objective, ScoreMatchingObjective):
        return None
    loss = objective.loss
    vectorised = torch.vmap(replace(update, in_place=False).__call__)

    @torch.no_grad()
    def step(state: State, v: Tensor, noise: Noise, rates: Rates) -> tuple[State, Info]:
        if not runs_fused(estimator, state, v, rates):
            return (vectorised if rates["theta"].dim() else update)(state, v, noise, rates)
        with named("fused gradient"):
            gradient, state, info = fused_gradient(estimator, loss, state, v, noise, rates)
        return update.move(state, gradient, info, rates)

    return step
