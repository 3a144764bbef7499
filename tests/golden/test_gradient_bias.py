"""Theorem 2 of BiSM: where the lower level is strongly convex, the gradient's bias falls geometrically in N."""

import math
import statistics
from itertools import pairwise

import torch

from eblvm.engine.evaluation.studies.gradient_bias import gradient_bias
from eblvm.engine.methods.bilevel import BilevelScore
from eblvm.engine.methods.divergences import KlExact
from eblvm.engine.methods.estimators.bism import Bism
from eblvm.engine.methods.losses.dsm import Dsm
from eblvm.engine.methods.score_matching import ScoreMatchingObjective
from eblvm.engine.models.grbm import GRBM
from eblvm.engine.models.posteriors import Bernoulli
from eblvm.engine.optim.optimizers import Adam
from eblvm.kernels import philox
from eblvm.kernels.philox import Key


def test_gradient_bias_falls_geometrically() -> None:
    # More samples than visible units and small logits make the exact KL strongly convex in (A, a).
    adam = Adam()
    options = Bism(K=0, N=0, divergence=KlExact(), unroll_optimizer="sgd")  # with its automatic step size
    estimator = BilevelScore(options, GRBM(3, 4), Bernoulli(3, 4), adam)
    objective = ScoreMatchingObjective(estimator, Dsm(0.5), adam)
    v = philox.normal(Key(0, 0), 0, 64, (3,), dtype=torch.float64)
    state = torch.utils._pytree.tree_map(lambda t: t.double(), objective.init(Key(7, 0), v))
    rates = {name: torch.tensor(1e-2, dtype=torch.float64) for name in ("theta", "phi", "unroll")}
    Ns = (0, 5, 10, 15, 20, 25, 30)
    table = gradient_bias(objective, state, v, rates, Ns, (0, 50))

    for row in table:
        factors = [after / before for before, after in pairwise(row)]
        assert row[-1] < 1e-2 * row[0]
        assert all(f < 0.7 for f in factors), factors
        logs = [math.log(b) for b in row]
        assert statistics.correlation(Ns, logs) < -0.98  # a straight line in a logarithmic plot
    assert table[1][0] < table[0][0]  # K real steps bring phi_0 nearer
