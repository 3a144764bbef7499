"""The bias of BiSM's unrolled gradient against N and K (Theorem 2 and Fig. 1 of the BiSM paper).

    bias(N, K) = |dJ(theta, phi_N)/dtheta - dJ(theta, phi*)/dtheta| / |dJ(theta, phi*)/dtheta|

phi_0 is q after K real steps from where the run left it; phi* is the model's own posterior, which a linear Bernoulli q
contains, so the exact gradient is that of the free energy and the lower level need not be solved.
"""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from eblvm.engine.errors import UserError
from eblvm.engine.methods.bilevel import BilevelScore, ExactScore
from eblvm.engine.methods.score_matching import ScoreMatchingObjective
from eblvm.engine.methods.types import Objective, Rates, State
from eblvm.engine.models.posteriors import Bernoulli
from eblvm.kernels.philox import Key


@torch.no_grad()
def gradient_bias(
    objective: Objective,
    state: State,
    v: Tensor,
    rates: Rates,
    Ns: Sequence[int],
    Ks: Sequence[int],
    draws: int = 16,
) -> list[list[float]]:
    """Relative bias on one minibatch, a row for each K and a column for each N.

    Gradients are means over `draws` of the noise, the same draws in every cell and for the exact one: what is left is
    the bias of the unroll, and an error of the mean that falls with the root of `draws`.
    """
    estimator = getattr(objective, "estimator", None)
    if not isinstance(objective, ScoreMatchingObjective) or not isinstance(estimator, BilevelScore):
        raise UserError("the gradient bias study is about unrolling; train with bidsm, bissm or bimdsm")
    if not (isinstance(estimator.posterior, Bernoulli) and len(estimator.posterior.net) == 1):
        raise UserError(
            "the gradient bias study knows the optimal q of a linear posterior only; use --posterior linear"
        )
    exact = replace(objective, estimator=ExactScore(estimator.energy))
    longest = replace(objective, estimator=estimator.with_options(K=max(Ks), N=max(Ns)))
    noises = [longest.draw(Key(0, step), v) for step in range(draws)]

    def mean_gradient(method: ScoreMatchingObjective) -> Tensor:
        gradients = [method.gradient(state, v, noise, rates)[0] for noise in noises]
        return torch.stack([torch.cat([g.flatten() for g in one.values()]) for one in gradients]).mean(0)

    target = mean_gradient(exact)

    def bias(N: int, K: int) -> float:
        one = replace(objective, estimator=estimator.with_options(K=K, N=N))
        return float((mean_gradient(one) - target).norm() / target.norm())

    return [[bias(N, K) for N in Ns] for K in Ks]
