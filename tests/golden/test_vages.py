"""VaGES against the per-sample formula, the exact gradient and its own theory, in fp64.

The formula is written out with nothing of the engine's: one backward pass for every sample and every gradient.
Shape tags: L samples, M directions, B batch, D visible, H latent.
"""

import math
from dataclasses import replace
from functools import partial

import pytest
import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from eblvm.engine.methods.bilevel import ExactScore
from eblvm.engine.methods.divergences import Fisher, Kl
from eblvm.engine.methods.importance import Importance
from eblvm.engine.methods.losses.dsm import Dsm
from eblvm.engine.methods.losses.ksd import Ksd
from eblvm.engine.methods.losses.mdsm import Mdsm
from eblvm.engine.methods.losses.ssm import Ssm
from eblvm.engine.methods.score_matching import ScoreMatchingObjective
from eblvm.engine.methods.vages import ImportanceScore, Vages, VagesScore
from eblvm.engine.models.posteriors import Exact
from eblvm.engine.nets.grbm import GRBM
from eblvm.engine.nets.posteriors import Bernoulli, ConvGaussian
from eblvm.engine.optim.adam import Adam
from eblvm.kernels import philox
from eblvm.kernels.philox import Key
from tests.golden import brute_force, test_deep_gradient

B, D, H, M, LR, WIDTH = 6, 5, 4, 2, 0.01, 1.3
ADAM = Adam((0.9, 0.95))
LOSSES = {"dsm": Dsm(0.3), "mdsm": Mdsm((0.1, 1.0), "geometric", 0.1), "ssm": Ssm(directions=M), "ksd": Ksd(WIDTH)}


def grbm_method(loss: str, L: int, K: int = 0, **how) -> ScoreMatchingObjective:
    options = Vages(K=K, L=L, divergence=Kl(), **how)
    return ScoreMatchingObjective(VagesScore(options, GRBM(D, H), Bernoulli(D, H), ADAM), LOSSES[loss], ADAM)


def deep_method(loss: str, L: int, K: int = 0, checkpoint: str = "none", **how) -> ScoreMatchingObjective:
    energy = test_deep_gradient.energy_of("deep", checkpoint)
    posterior = ConvGaussian(test_deep_gradient.SHAPE, test_deep_gradient.H, 3)
    options = Vages(K=K, L=L, divergence=Fisher(), **how)
    return ScoreMatchingObjective(VagesScore(options, energy, posterior, ADAM), LOSSES[loss], ADAM)


def start(method: ScoreMatchingObjective, shape: tuple[int, ...], seed: int = 3):
    v = philox.uniform(Key(seed, 0), 0, B, shape, dtype=torch.float64)
    state = tree_map(lambda t: t.double(), method.init(Key(5, 0), v))
    rates = {name: torch.tensor(LR, dtype=torch.float64) for name in ("theta", "phi", "unroll")}
    return state, v, method.draw(Key(11, 4), v), rates


def moved_samples(
    energy, log_q_sample, method: ScoreMatchingObjective, theta: dict, phi: dict, x: Tensor, noise: dict
) -> Tensor:
    """h of every set: q's samples, then Langevin steps, by autograd of the energy."""
    h = log_q_sample(phi, x, noise["samples"])
    langevin = method.estimator.langevin
    for z in noise["langevin"]:
        h = h.detach().requires_grad_()
        (slope,) = torch.autograd.grad(-energy(theta, x, h).sum(), h)
        h = h + 0.5 * langevin.alpha * slope + langevin.std * z
    return h.detach()


def per_sample_gradient(
    method: ScoreMatchingObjective, energy, sampled, theta: dict, phi: dict, v: Tensor, noise: dict
) -> dict:
    """The estimate of d loss / d theta, term by term."""
    vages, loss = method.estimator, method.loss
    theta = {k: p.detach().requires_grad_() for k, p in theta.items()}
    sigma = torch.ones(B, dtype=v.dtype)
    if isinstance(loss, Dsm):
        sigma = 0.3 * sigma
    if isinstance(loss, Mdsm):
        sigma = 0.1 * 10 ** noise["level"]
    wide = sigma.view(-1, *[1] * (v.dim() - 1))
    eps = noise["perturb"][-1] if noise["perturb"] else torch.zeros_like(v)
    x = v + wide * eps if noise["perturb"] else v
    h = moved_samples(energy, sampled, method, theta, phi, x, noise)
    L = vages.options.L
    of_value, of_slope, of_covariance = h.split(L) if vages.independent else (h, h, h)
    x = x.detach().requires_grad_()

    def log_p(h_BH: Tensor) -> Tensor:
        return -energy(theta, x, h_BH)

    def score(h_BH: Tensor, graph: bool = False) -> Tensor:
        (s,) = torch.autograd.grad(log_p(h_BH).sum(), x, create_graph=graph)
        return s if graph else s.detach()

    def quantity(h_BH: Tensor, z: Tensor, graph: bool) -> Tensor:
        """What is linear in the moments of the posterior: z.grad_v log p~, and SSM's second moment. [B]"""
        s = score(h_BH, True)
        value = (z * s).flatten(1).sum(1)
        if isinstance(loss, Ssm):
            for u in noise["direction"]:
                (along,) = torch.autograd.grad((s * u).sum(), x, create_graph=True)
                value = value + ((along * u).flatten(1).sum(1) + (s * u).flatten(1).sum(1) ** 2) / M
        return value if graph else value.detach()

    s = torch.stack([score(h_BH) for h_BH in of_value]).mean(0)
    if isinstance(loss, Dsm):
        z = s + eps / wide
    elif isinstance(loss, Mdsm):
        z = (s / wide + eps / 0.1**2) / wide
    elif isinstance(loss, Ssm):
        z = s - sum(2 / M * (u * s).flatten(1).sum(1).view(-1, *[1] * (v.dim() - 1)) * u for u in noise["direction"])
    else:
        z = stein_cotangent(x.detach(), s)

    total = torch.stack([quantity(h_BH, z, True) for h_BH in of_slope]).mean(0).mean()
    terms = dict(zip(theta, torch.autograd.grad(total, list(theta.values()), materialize_grads=True), strict=True))
    if vages.options.covariance == "none":
        return terms
    values = torch.stack([quantity(h_BH, z, False) for h_BH in of_covariance])
    count = L - 1 if vages.options.covariance == "unbiased" else L
    for b in range(B):
        for i, h_BH in enumerate(of_covariance):
            grads = torch.autograd.grad(log_p(h_BH)[b], list(theta.values()), materialize_grads=True)
            for name, g in zip(theta, grads, strict=True):
                terms[name] = terms[name] + (values[i, b] - values[:, b].mean()) * g / count / B
    return terms


def stein_cotangent(x: Tensor, s: Tensor) -> Tensor:
    """B d KSD / d s(v_b), pair by pair."""
    flat, scores, n = x.flatten(1), s.flatten(1), B // 2
    z = torch.zeros_like(flat)
    for i in range(n):
        for j in range(n, 2 * n):
            difference = flat[i] - flat[j]
            k = torch.exp(-difference.square().sum() / (2 * WIDTH**2))
            z[i] += k * (scores[j] + difference / WIDTH**2) * B / n**2
            z[j] += k * (scores[i] - difference / WIDTH**2) * B / n**2
    return z.view_as(x)


def hard(phi: dict, v: Tensor, logistic: Tensor) -> Tensor:
    return (brute_force.logits(phi, v) + logistic > 0).to(v.dtype)


def compare(method: ScoreMatchingObjective, shape: tuple[int, ...], energy, sampled) -> None:
    state, v, noise, rates = start(method, shape)
    with torch.no_grad():
        gradient, moved, _ = method.gradient(state, v, noise, rates)
    expected = per_sample_gradient(method, energy, sampled, state.theta, moved.phi, v, noise)
    for name, value in expected.items():
        assert (gradient[name] - value).abs().max() <= 1e-10 * value.abs().max().clamp(min=1e-12), name
    assert sum(float(value.abs().max()) > 0 for value in expected.values()) >= len(expected) - 1


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("L", [2, 3, 7])
def test_grbm_equals_the_per_sample_formula(loss: str, L: int) -> None:
    compare(grbm_method(loss, L, K=2), (D,), brute_force.energy, hard)


@pytest.mark.parametrize("how", [{"covariance": "biased"}, {"covariance": "none"}, {"samples": "shared"}], ids=str)
@pytest.mark.parametrize("loss", LOSSES)
def test_grbm_variants(loss: str, how: dict) -> None:
    compare(grbm_method(loss, 3, **how), (D,), brute_force.energy, hard)


deep_energy = partial(test_deep_gradient.plain_energy, "deep")


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("L", [2, 3])
def test_deep_equals_the_per_sample_formula(loss: str, L: int) -> None:
    method = deep_method(loss, L, K=1, C=2, langevin_alpha=0.1, langevin_noise=0.1)
    compare(method, test_deep_gradient.SHAPE, deep_energy, test_deep_gradient.sample)


@pytest.mark.parametrize("checkpoint", ["blocks", "all"])
@pytest.mark.parametrize("samples", ["independent", "shared"])
def test_deep_with_checkpointing(checkpoint: str, samples: str) -> None:
    method = deep_method("mdsm", 2, checkpoint=checkpoint, samples=samples)
    compare(method, test_deep_gradient.SHAPE, deep_energy, test_deep_gradient.sample)


def test_compiled_and_vmapped_gradients_equal_the_eager_one() -> None:
    """The compiler traces the same derivatives; so does vmap, over two replicas of a GRBM."""
    method = grbm_method("dsm", 3, K=1)
    state, v, noise, rates = start(method, (D,))
    with torch.no_grad():
        eager, *_ = method.gradient(state, v, noise, rates)
        compiled, *_ = torch.compile(method.gradient, backend="aot_eager", dynamic=False)(state, v, noise, rates)
        twice = tree_map(lambda t: torch.stack([t, t]), (state, v, noise, rates))
        together, *_ = torch.vmap(method.gradient)(*twice)
    for name, value in eager.items():
        torch.testing.assert_close(compiled[name], value, rtol=1e-11, atol=1e-12)
        torch.testing.assert_close(together[name][1], value, rtol=1e-11, atol=1e-12)


def gradient_at(method: ScoreMatchingObjective, state, v: Tensor, noise: dict, rates: dict, samples: Tensor) -> dict:
    return method.gradient(state, v, noise | {"samples": samples}, rates)[0]


@pytest.mark.parametrize("loss", ["dsm", "ssm", "ksd"])
def test_it_is_unbiased_with_the_exact_posterior(loss: str) -> None:
    """The mean of many estimates is the exact gradient within their own standard error: a z-score for every entry."""
    method = grbm_method(loss, 2, posterior=Exact())
    state, v, noise, rates = start(method, (D,))
    exact = replace(method, estimator=ExactScore(method.estimator.energy))
    with torch.no_grad():
        target, *_ = exact.gradient(state, v, noise, rates)
        draws = 2000
        latents = [method.estimator.draw(Key(1, i), B, {"dtype": v.dtype}) for i in range(draws)]
        many = torch.stack([latent["samples"] for latent in latents])

        estimates = torch.vmap(partial(gradient_at, method, state, v, noise, rates), chunk_size=500)(many)
    for name, value in target.items():
        error = estimates[name].std(0) / math.sqrt(draws)
        z = (estimates[name].mean(0) - value).abs() / error.clamp(min=1e-9)
        assert z.max() < 4.5, (name, z.max())
        if name == "W":
            assert (estimates[name].std(0) > 0).any()


def test_the_error_falls_at_the_monte_carlo_rate() -> None:
    """Sixteen times the samples, a quarter of the error (within the spread of 200 repetitions)."""
    errors = []
    for L in (4, 64):
        method = grbm_method("dsm", L, posterior=Exact())
        state, v, noise, rates = start(method, (D,))
        exact = replace(method, estimator=ExactScore(method.estimator.energy))
        with torch.no_grad():
            target, *_ = exact.gradient(state, v, noise, rates)
            many = torch.stack([method.estimator.draw(Key(1, i), B, {"dtype": v.dtype})["samples"] for i in range(200)])
            found = torch.vmap(partial(gradient_at, method, state, v, noise, rates))(many)
        errors.append(float((found["W"] - target["W"]).square().mean().sqrt()))
    assert 3.2 < errors[0] / errors[1] < 5.0


def test_the_control_variate_has_no_variance_where_q_is_the_posterior() -> None:
    plain = grbm_method("dsm", 2, posterior=Exact())
    state, v, _, _ = start(plain, (D,))
    exact, *_ = ExactScore(GRBM(D, H))(state.theta, {}, (), [LOSSES["ssm"].perturb(v, None, {})], {}, {})

    def scores(control_variate: bool) -> Tensor:
        estimator = plain.estimator.with_options(control_variate=control_variate)
        found = []
        for i in range(5):
            noise = estimator.draw(Key(i, 0), B, {"dtype": v.dtype})
            surrogate, *_ = estimator(
                state.theta, state.phi, state.phi_opt, [LOSSES["ssm"].perturb(v, None, {})], noise, {}
            )
            found.append(surrogate.score().detach())
        return torch.stack(found)

    with torch.no_grad():
        expected = exact.score().expand(5, -1, -1)
    torch.testing.assert_close(scores(True), expected, rtol=1e-12, atol=1e-12)
    assert scores(False).std(0).max() > 0.01


def test_importance_sampling_tends_to_the_exact_score() -> None:
    estimator = ImportanceScore(Importance(K=0, L=20_000, divergence=Kl()), GRBM(D, H), Bernoulli(D, H), ADAM)
    state, v, _, _ = start(ScoreMatchingObjective(estimator, LOSSES["ksd"], ADAM), (D,))
    batches = [LOSSES["ksd"].perturb(v, None, {})]
    noise = estimator.draw(Key(0, 0), B, {"dtype": v.dtype})
    surrogate, *_ = estimator(state.theta, state.phi, state.phi_opt, batches, noise, {})
    exact, *_ = ExactScore(GRBM(D, H))(state.theta, {}, (), batches, {}, {})
    with torch.no_grad():
        score = surrogate.score()
        torch.testing.assert_close(score, exact.score(), rtol=0, atol=0.02)
    assert surrogate.log_density is not None
    x = v.clone().requires_grad_()
    (slope,) = torch.autograd.grad(surrogate.log_density(x).sum(), x)
    torch.testing.assert_close(score, slope, rtol=1e-10, atol=1e-12)
