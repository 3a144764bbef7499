"""The closed forms of VaGES and importance sampling on a GRBM against the generic estimators, in fp64."""

import math
from dataclasses import replace

import pytest
import torch
from torch.utils._pytree import tree_map

from eblvm.engine.methods.bilevel import ExactScore
from eblvm.engine.methods.divergences import Kl, KlExact
from eblvm.engine.methods.grbm.fused import fused_gradient, fused_step_for, fused_update_for
from eblvm.engine.methods.importance import Importance
from eblvm.engine.methods.losses.dsm import Dsm
from eblvm.engine.methods.losses.ksd import Ksd
from eblvm.engine.methods.losses.ssm import Ssm
from eblvm.engine.methods.score_matching import ScoreMatchingObjective
from eblvm.engine.methods.update import Update
from eblvm.engine.methods.vages import Vages
from eblvm.engine.models.posteriors import Exact
from eblvm.engine.nets.grbm import GRBM
from eblvm.engine.nets.posteriors import Bernoulli
from eblvm.engine.optim.adam import Adam
from eblvm.kernels import philox
from eblvm.kernels.philox import Key

ADAM = Adam((0.9, 0.95))
LOSSES = {"dsm": Dsm(0.3), "ksd": Ksd(1.3)}


def method(
    kind: type, loss: str, B: int, D: int, H: int, *, K: int, exact: bool, shared: bool, **how
) -> ScoreMatchingObjective:
    divergence, noise = KlExact() if exact else Kl(), "shared" if shared else "fresh"
    options = kind(K=K, L=3, divergence=divergence, noise=noise, **how)
    return ScoreMatchingObjective(options.build(GRBM(D, H), Bernoulli(D, H), ADAM), LOSSES[loss], ADAM)


def start(objective: ScoreMatchingObjective, B: int, D: int, seed: int | torch.Tensor = 3):
    v = philox.normal(Key(seed, 0), 0, B, (D,), dtype=torch.float64)
    state = tree_map(lambda t: t.double(), objective.init(Key(seed, 1), v))
    lead = tuple(torch.as_tensor(seed).shape)
    if state.phi:
        state = state._replace(phi_opt=state.phi_opt._replace(step_count=torch.full(lead, 2.0, dtype=v.dtype)))
    state = state._replace(
        theta_opt=state.theta_opt._replace(step_count=torch.zeros(lead, dtype=v.dtype)),
    )
    rates = {name: torch.full(lead, 0.01, dtype=v.dtype) for name in ("theta", "phi", "unroll")}
    return state, v, objective.draw(Key(seed, 4), v), rates


VARIANTS = [
    (Vages, {}),
    (Vages, {"covariance": "biased", "control_variate": True}),
    (Vages, {"covariance": "none", "samples": "shared"}),
    (Vages, {"samples": "shared", "control_variate": True}),
    (Importance, {}),
    (Importance, {"proposal": "uniform"}),
]


@pytest.mark.parametrize("shared", [True, False], ids=["shared", "fresh"])
@pytest.mark.parametrize("exact", [True, False], ids=["kl-exact", "kl"])
@pytest.mark.parametrize("size", [(6, 5, 4), (8, 2, 1), (4, 63, 7)], ids=str)
@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize(("kind", "how"), VARIANTS, ids=str)
def test_equals_the_generic_gradient(kind, how, loss, size, exact, shared) -> None:
    objective = method(kind, loss, *size, K=2, exact=exact, shared=shared, **how)
    state, v, noise, rates = start(objective, *size[:2])
    estimator = fused_step_for(objective)
    assert estimator is objective.estimator
    with torch.no_grad():
        expected = objective.gradient(state, v, noise, rates)
        got = fused_gradient(estimator, objective.loss, state, v, noise, rates)
    tree_map(lambda a, b: torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-12), got, expected)
    assert float(expected[0]["W"].abs().max()) > 0


@pytest.mark.parametrize("kind", [Vages, Importance])
def test_exact_posterior(kind) -> None:
    objective = method(kind, "dsm", 6, 5, 4, K=0, exact=True, shared=True, posterior=Exact())
    state, v, noise, rates = start(objective, 6, 5)
    with torch.no_grad():
        expected = objective.gradient(state, v, noise, rates)
        got = fused_gradient(objective.estimator, objective.loss, state, v, noise, rates)
    tree_map(lambda a, b: torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-12), got, expected)


def test_uniform_proposal_is_the_mean_over_fair_coins() -> None:
    """log p(v) ~ log mean_i 2^H p~(v, h_i), whose score is that of a logsumexp over the drawn h; q plays no part."""
    objective = method(Importance, "ksd", 6, 5, 4, K=0, exact=True, shared=True, proposal="uniform")
    state, v, noise, _ = start(objective, 6, 5)
    W, b, c, log_sigma = (state.theta[name] for name in ("W", "b", "c", "log_sigma"))
    h = (noise["samples"] > 0).double()
    x = v.clone().requires_grad_()
    log_p = -0.5 * ((x - b) / log_sigma.exp()).square().sum(-1) + ((x @ W + c) * h).sum(-1)
    log_mean = (log_p + 4 * math.log(2)).logsumexp(0)
    (expected,) = torch.autograd.grad(log_mean.sum(), x)
    batch = objective.batches(v, noise)
    estimate, *_ = objective.estimator(state.theta, state.phi, state.phi_opt, batch, noise, {})
    torch.testing.assert_close(estimate.score(), expected, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(estimate.log_density(v), log_mean.detach(), rtol=1e-10, atol=1e-12)
    other = objective.estimator(state.theta, tree_map(torch.zeros_like, state.phi), (), batch, noise, {})[0]
    assert torch.equal(other.score(), estimate.score())
    assert 0.3 < float(h.mean()) < 0.7


@pytest.mark.parametrize("B", [6, 7])
def test_exact_ksd(B: int) -> None:
    objective = ScoreMatchingObjective(ExactScore(GRBM(5, 4)), LOSSES["ksd"], ADAM)
    state, v, noise, rates = start(objective, B, 5)
    with torch.no_grad():
        expected = objective.gradient(state, v, noise, rates)
        got = fused_gradient(objective.estimator, objective.loss, state, v, noise, rates)
    tree_map(lambda a, b: torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-12), got, expected)


@pytest.mark.parametrize(("kind", "how"), VARIANTS, ids=str)
@pytest.mark.parametrize("loss", LOSSES)
def test_replicas_need_no_vmap(loss, kind, how) -> None:
    objective = method(kind, loss, 6, 5, 4, K=2, exact=False, shared=False, **how)
    arguments = start(objective, 6, 5, torch.tensor([3, 4, 5]))
    update = Update(objective, ADAM, 0.1)
    step = fused_update_for(update)
    assert step is not None
    expected, got = torch.vmap(update)(*arguments), step(*arguments)
    tree_map(lambda a, b: torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-12), got, expected)


def test_what_has_no_closed_form() -> None:
    objective = method(Vages, "dsm", 6, 5, 4, K=1, exact=False, shared=True)
    estimator = objective.estimator
    for changed in (
        estimator.with_options(C=1, langevin_alpha=0.2, langevin_noise=0.1),
        replace(estimator, posterior=Bernoulli(5, 4, (3,))),
        estimator.with_options(divergence=Kl(latent_samples=2)),
    ):
        assert fused_step_for(replace(objective, estimator=changed)) is None, changed
    assert fused_step_for(ScoreMatchingObjective(estimator, Ssm(), ADAM)) is None
