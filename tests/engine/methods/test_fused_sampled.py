"""The closed forms of VaGES and importance sampling on a GRBM against the generic estimators, in fp64."""

import math
from dataclasses import replace

import pytest
import torch
from torch.utils._pytree import tree_map

from eblvm.engine.methods.base import Nets
from eblvm.engine.methods.estimates import ScoreEstimate
from eblvm.engine.methods.exact import FreeEnergy
from eblvm.engine.methods.importance import Importance
from eblvm.engine.methods.losses.dsm import Dsm
from eblvm.engine.methods.losses.ksd import Ksd
from eblvm.engine.methods.losses.ssm import Ssm
from eblvm.engine.methods.lower_level import Kl, KlExact
from eblvm.engine.methods.score_matching import ScoreMatching
from eblvm.engine.methods.vages import Vages
from eblvm.engine.models.posteriors import Exact
from eblvm.engine.nets.grbm import GRBM
from eblvm.engine.nets.posteriors import Bernoulli
from eblvm.engine.optim.adam import Adam
from eblvm.engine.training.step import moved, vectorised
from eblvm.engine.types import Params
from eblvm.kernels import grbm_dsm, philox
from eblvm.kernels.philox import Key
from tests.engine.methods.started import ADAM, BETAS, Started, assert_trees_close, cast, counted, drawn, rates_of
from tests.kernels.comparison import needs_native

LOSSES = {"dsm": Dsm(0.3), "ksd": Ksd(1.3)}
CPU, META = torch.device("cpu"), torch.device("meta")


def method_of(kind: type, loss: str, *, K: int, exact: bool, shared: bool, **how) -> ScoreMatching:
    divergence, noise = KlExact() if exact else Kl(), "shared" if shared else "fresh"
    return ScoreMatching(kind(K=K, L=3, divergence=divergence, noise=noise, **how), LOSSES[loss])


def start(method: ScoreMatching, B: int, D: int, H: int, seed: int | torch.Tensor = 3) -> Started:
    nets, replicas = Nets(GRBM(D, H), Bernoulli(D, H), phi_optimizer=ADAM), tuple(torch.as_tensor(seed).shape)
    v = philox.normal(Key(seed, 0), 0, B, (D,), dtype=torch.float64)
    state = cast(method.init(nets, Key(seed, 1), v, ADAM))

    state = state._replace(theta=counted(state.theta, 0.0, replicas), phi=counted(state.phi, 2.0, replicas))
    noise = drawn(method, nets, Key(seed, 4), v)
    return Started(method, nets, state, v, noise, rates_of(0.01, replicas=replicas))


def assert_fused_equals_autograd(begun: Started) -> None:
    expected = begun.by_autograd()
    assert_trees_close(begun.fused(), expected, rtol=1e-10, atol=1e-12)
    assert float(expected[0]["W"].abs().max()) > 0


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
    method = method_of(kind, loss, K=2, exact=exact, shared=shared, **how)
    assert_fused_equals_autograd(start(method, *size))


@pytest.mark.parametrize("kind", [Vages, Importance])
def test_exact_posterior(kind) -> None:
    method = method_of(kind, "dsm", K=0, exact=True, shared=True, posterior=Exact())
    assert_fused_equals_autograd(start(method, 6, 5, 4))


def test_uniform_proposal_is_the_mean_over_fair_coins() -> None:
    """log p(v) ~ log mean_i 2^H p~(v, h_i), whose score is that of a logsumexp over the drawn h; q plays no part."""
    begun = start(method_of(Importance, "ksd", K=0, exact=True, shared=True, proposal="uniform"), 6, 5, 4)
    method, nets, state, v, noise, rates = begun
    theta = state.theta.params
    W, b, c, log_sigma = (theta[name] for name in ("W", "b", "c", "log_sigma"))
    h = (noise["samples"] > 0).double().movedim(1, 0)
    x = v.clone().requires_grad_()
    log_p = -0.5 * ((x - b) / log_sigma.exp()).square().sum(-1) + ((x @ W + c) * h).sum(-1)
    log_mean = (log_p + 4 * math.log(2)).logsumexp(0)
    (expected,) = torch.autograd.grad(log_mean.sum(), x)
    (batch,) = method.batches(v, noise)
    features = method.features(nets, theta, batch.v, rates)

    def estimated(phi: Params) -> ScoreEstimate:
        return method.estimator.estimate(nets, theta, phi, features, batch, noise, rates)

    estimate, other = estimated(state.phi.params), estimated(tree_map(torch.zeros_like, state.phi.params))
    torch.testing.assert_close(estimate.score(), expected, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(estimate.log_density(v), log_mean.detach(), rtol=1e-10, atol=1e-12)
    assert torch.equal(other.score(), estimate.score())
    assert 0.3 < float(h.mean()) < 0.7


@needs_native(grbm_dsm)
@pytest.mark.parametrize("B", [6, 7])
def test_exact_ksd(B: int) -> None:
    assert_fused_equals_autograd(start(ScoreMatching(FreeEnergy(), LOSSES["ksd"]), B, 5, 4))


@pytest.mark.parametrize(("kind", "how"), VARIANTS, ids=str)
@pytest.mark.parametrize("loss", LOSSES)
def test_replicas_need_no_vmap(loss, kind, how) -> None:
    method = method_of(kind, loss, K=2, exact=False, shared=False, **how)
    begun = start(method, 6, 5, 4, torch.tensor([3, 4, 5]))
    fused = method.fused(begun.nets, CPU, torch.float64)
    assert fused is not None
    expected, got = (
        moved(gradient, begun.nets, Adam(BETAS, clip_norm=0.1), in_place=False)(*begun.given)
        for gradient in (vectorised(method.gradient(begun.nets)), fused)
    )
    assert_trees_close(got, expected, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("kind", [Vages, Importance])
def test_what_has_no_closed_form(kind) -> None:
    method = method_of(kind, "dsm", K=1, exact=False, shared=True)
    nets = Nets(GRBM(5, 4), Bernoulli(5, 4), phi_optimizer=ADAM)

    def fused(nets: Nets = nets, loss=method.loss, device: torch.device = CPU, dtype=torch.float64, **changes):
        return replace(method, estimator=replace(method.estimator, **changes), loss=loss).fused(nets, device, dtype)

    class Other(GRBM):
        pass

    assert fused() is not None
    assert fused(dtype=torch.float32) is not None
    assert fused(divergence=Kl(latent_samples=2)) is None
    assert fused(loss=Ssm()) is None
    assert fused(replace(nets, posterior=Bernoulli(5, 4, (3,)))) is None
    assert fused(replace(nets, energy=Other(5, 4))) is None
    assert fused(replace(nets, phi_optimizer=Adam(BETAS, clip_norm=1.0))) is None
    assert fused(device=META) is None
    assert fused(dtype=torch.bfloat16) is None
    if kind is Vages:
        assert fused(C=1, langevin_alpha=0.2, langevin_noise=0.1) is None
