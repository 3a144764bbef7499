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
from eblvm.engine.objectives.estimators import Bism, FreeEnergy, Rates
from eblvm.engine.objectives.score_matching import ScoreMatching
from eblvm.engine.objectives.state import Objective, State
from eblvm.kernels.philox import Key


@torch.no_grad()
def gradient_bias(
    objective: Objective, state: State, v: Tensor, rates: Rates, Ns: Sequence[int], Ks: Sequence[int]
) -> list[list[float]]:
    """Relative bias on one minibatch, a row for each K and a column for each N; the same noise throughout."""
    estimator = getattr(objective, "estimator", None)
    if not isinstance(objective, ScoreMatching) or not isinstance(estimator, Bism):
        raise UserError("the gradient bias study is about unrolling; train with bidsm, bissm or bimdsm")
    exact = replace(objective, estimator=FreeEnergy(estimator.energy))
    longest = replace(objective, estimator=replace(estimator, K=max(Ks), N=max(Ns)))
    noise = longest.draw(Key(0, 0), v)
    target, *_ = exact.gradient(state, v, noise, rates)
    flat_target = torch.cat([g.flatten() for g in target.values()])
    table = []
    for K in Ks:
        row = []
        for N in Ns:
            one = replace(objective, estimator=replace(estimator, K=K, N=N))
            gradient, *_ = one.gradient(state, v, noise, rates)
            flat = torch.cat([g.flatten() for g in gradient.values()])
            row.append(float((flat - flat_target).norm() / flat_target.norm()))
        table.append(row)
    return table
