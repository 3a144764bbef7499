"""Theorem 2 of BiSM: where the lower level is strongly convex, the gradient's bias falls geometrically in N."""

import math
import statistics
from itertools import pairwise

import torch

from eblvm.engine import recipes
from eblvm.engine.evaluation.studies.gradient_bias import gradient_bias
from eblvm.engine.methods.base import Nets
from eblvm.engine.methods.bism import Bism
from eblvm.engine.methods.losses.dsm import Dsm
from eblvm.engine.methods.lower_level import KlExact
from eblvm.engine.methods.score_matching import ScoreMatching
from eblvm.engine.nets.grbm import GRBM
from eblvm.engine.nets.posteriors import Bernoulli
from eblvm.engine.optim.adam import Adam
from eblvm.kernels import philox
from eblvm.kernels.philox import Key
from tests.engine.methods.started import cast, rates_of


def test_gradient_bias_falls_geometrically() -> None:
    # More samples than visible units and small logits make the exact KL strongly convex in (A, a).
    bism = Bism(K=0, N=0, divergence=KlExact(), unroll_optimizer="sgd")  # with its automatic step size
    method, nets = ScoreMatching(bism, Dsm(0.5)), Nets(GRBM(3, 4), Bernoulli(3, 4), phi_optimizer=Adam())
    v = philox.normal(Key(0, 0), 0, 64, (3,), dtype=torch.float64)
    state, rates = cast(method.init(nets, Key(7, 0), v, Adam())), rates_of(1e-2)
    Ns = (0, 5, 10, 15, 20, 25, 30)
    facts = gradient_bias(method, nets, state, v, rates, Ns, (0, 50))
    table = facts["relative_bias"]

    for row in table:
        factors = [after / before for before, after in pairwise(row)]
        assert row[-1] < 1e-2 * row[0]
        assert all(f < 0.7 for f in factors), factors
        logs = [math.log(b) for b in row]
        assert statistics.correlation(Ns, logs) < -0.98  # a straight line in a logarithmic plot
    assert table[1][0] < table[0][0]  # K real steps bring phi_0 nearer
    # On a GRBM a Newton step on q's outputs is the exact posterior: no bias and no spread, whatever q is.
    assert max(*facts["newton_bias"], *facts["newton_spread"]) < 1e-10


def test_newton_step_on_a_deep_eblvm() -> None:
    """Truth by the trapezoidal rule, H = 2: the step has less than half the bias and spread of N = 0."""
    config = recipes.recipe("checkerboard", model="mlp").replaced(width=16, depth=2, dtype="float64", batch=64)
    v = config.load_data().train[:64]
    method, nets = config.method, config.method.nets(config, v)
    state = cast(method.init(nets, Key(7, 0), v, config.optimisation.theta_optimizer()))
    rates = rates_of(3e-3)
    facts = gradient_bias(method, nets, state, v, rates, (0, 2), (100,))
    (bias, *_), (spread, *_) = facts["relative_bias"][0], facts["relative_spread"][0]
    assert facts["newton_bias"][0] < 0.5 * bias
    assert facts["newton_spread"][0] < 0.5 * spread
