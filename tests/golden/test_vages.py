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

from eblvm.engine.methods.base import Nets, Rows
from eblvm.engine.methods.estimates import ScoreEstimate
from eblvm.engine.methods.exact import FreeEnergy
from eblvm.engine.methods.importance import Importance
from eblvm.engine.methods.losses.dsm import Dsm
from eblvm.engine.methods.losses.ksd import Ksd
from eblvm.engine.methods.losses.mdsm import Mdsm
from eblvm.engine.methods.losses.ssm import Ssm
from eblvm.engine.methods.lower_level import Fisher, Kl
from eblvm.engine.methods.score_matching import ScoreMatching
from eblvm.engine.methods.vages import Vages
from eblvm.engine.models.posteriors import Exact
from eblvm.engine.nets.grbm import GRBM
from eblvm.engine.nets.posteriors import Bernoulli, ConvGaussian
from eblvm.kernels import philox
from eblvm.kernels.philox import Key
from tests.engine.methods.started import ADAM, Started, cast, drawn, rates_of
from tests.golden import brute_force, test_deep_gradient

B, D, H, M, LR, WIDTH = 6, 5, 4, 2, 0.01, 1.3
LOSSES = {"dsm": Dsm(0.3), "mdsm": Mdsm((0.1, 1.0), "geometric", 0.1), "ssm": Ssm(directions=M), "ksd": Ksd(WIDTH)}


def grbm_method(loss: str, L: int, K: int = 0, **how) -> Started:
    vages = Vages(K=K, L=L, divergence=Kl(), **how)
    return start(ScoreMatching(vages, LOSSES[loss]), Nets(GRBM(D, H), Bernoulli(D, H), phi_optimizer=ADAM), (D,))


def deep_method(loss: str, L: int, K: int = 0, checkpoint: str = "none", **how) -> Started:
    energy, shape = test_deep_gradient.energy_of("deep", checkpoint), test_deep_gradient.SHAPE
    nets = Nets(energy, ConvGaussian(shape, test_deep_gradient.H, 3), phi_optimizer=ADAM)
    return start(ScoreMatching(Vages(K=K, L=L, divergence=Fisher(), **how), LOSSES[loss]), nets, shape)


def start(method: ScoreMatching, nets: Nets, shape: tuple[int, ...], seed: int = 3) -> Started:
    v = philox.uniform(Key(seed, 0), 0, B, shape, dtype=torch.float64)
    state = cast(method.init(nets, Key(5, 0), v, ADAM))
    return Started(method, nets, state, v, drawn(method, nets, Key(11, 4), v), rates_of(LR))


def estimate_of(begun: Started, noise: dict | None = None, **changes) -> ScoreEstimate:
    """The estimate of the score that the method's loss reads."""
    method, nets, state, v, _, rates = begun
    estimator, noise = replace(method.estimator, **changes), begun.noise if noise is None else noise
    batches, theta = method.batches(v, noise), state.theta.params
    features = method.features(nets, theta, batches[-1].v, rates)
    response, *_ = estimator.respond(nets, theta, features.f, state.phi, batches, noise, rates)
    return estimator.estimate(nets, theta, response, features, batches[-1], noise, rates)


def exact_estimate(begun: Started) -> ScoreEstimate:
    return estimate_of(begun._replace(method=ScoreMatching(FreeEnergy(), begun.method.loss)))


def moved_samples(energy, log_q_sample, vages: Vages, theta: dict, phi: dict, x: Tensor, noise: dict) -> Tensor:
    """h of every set: q's samples, then Langevin steps, by autograd of the energy."""
    samples = noise["samples"].movedim(1, 0)
    h = log_q_sample(phi, x, samples)
    for z in noise["langevin"]:
        h = h.detach().requires_grad_()
        (slope,) = torch.autograd.grad(-energy(theta, x, h).sum(), h)
        h = h + 0.5 * vages.alpha(samples.shape[-1]) * slope + vages.langevin_noise * z.movedim(1, 0)
    return h.detach()


def per_sample_gradient(method: ScoreMatching, energy, sampled, theta: dict, phi: dict, v: Tensor, noise: dict) -> dict:
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
    h = moved_samples(energy, sampled, vages, theta, phi, x, noise)
    L = vages.L
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
            for u in noise["direction"].movedim(1, 0):
                (along,) = torch.autograd.grad((s * u).sum(), x, create_graph=True)
                value = value + ((along * u).flatten(1).sum(1) + (s * u).flatten(1).sum(1) ** 2) / M
        return value if graph else value.detach()

    s = torch.stack([score(h_BH) for h_BH in of_value]).mean(0)
    if isinstance(loss, Dsm):
        z = s + eps / wide
    elif isinstance(loss, Mdsm):
        z = (s / wide + eps / 0.1**2) / wide
    elif isinstance(loss, Ssm):
        z = s - sum(
            2 / M * (u * s).flatten(1).sum(1).view(-1, *[1] * (v.dim() - 1)) * u
            for u in noise["direction"].movedim(1, 0)
        )
    else:
        z = stein_cotangent(x.detach(), s)

    total = torch.stack([quantity(h_BH, z, True) for h_BH in of_slope]).mean(0).mean()
    terms = dict(zip(theta, torch.autograd.grad(total, list(theta.values()), materialize_grads=True), strict=True))
    if vages.covariance == "none":
        return terms
    values = torch.stack([quantity(h_BH, z, False) for h_BH in of_covariance])
    count = L - 1 if vages.covariance == "unbiased" else L
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


def compare(begun: Started, energy, sampled) -> None:
    method, _, state, v, noise, _ = begun
    gradient, moved, _ = begun.by_autograd()
    expected = per_sample_gradient(method, energy, sampled, state.theta.params, moved.phi.params, v, noise)
    for name, value in expected.items():
        assert (gradient[name] - value).abs().max() <= 1e-10 * value.abs().max().clamp(min=1e-12), name
    assert sum(float(value.abs().max()) > 0 for value in expected.values()) >= len(expected) - 1


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("L", [2, 3, 7])
def test_grbm_equals_the_per_sample_formula(loss: str, L: int) -> None:
    compare(grbm_method(loss, L, K=2), brute_force.energy, hard)


@pytest.mark.parametrize("how", [{"covariance": "biased"}, {"covariance": "none"}, {"samples": "shared"}], ids=str)
@pytest.mark.parametrize("loss", LOSSES)
def test_grbm_variants(loss: str, how: dict) -> None:
    compare(grbm_method(loss, 3, **how), brute_force.energy, hard)


deep_energy = partial(test_deep_gradient.plain_energy, "deep")


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("L", [2, 3])
def test_deep_equals_the_per_sample_formula(loss: str, L: int) -> None:
    method = deep_method(loss, L, K=1, C=2, langevin_alpha=0.1, langevin_noise=0.1)
    compare(method, deep_energy, test_deep_gradient.sample)


@pytest.mark.parametrize("checkpoint", ["blocks", "all"])
@pytest.mark.parametrize("samples", ["independent", "shared"])
def test_deep_with_checkpointing(checkpoint: str, samples: str) -> None:
    method = deep_method("mdsm", 2, checkpoint=checkpoint, samples=samples)
    compare(method, deep_energy, test_deep_gradient.sample)


def test_compiled_and_vmapped_gradients_equal_the_eager_one() -> None:
    """The compiler traces the same derivatives; so does vmap, over two replicas of a GRBM."""
    begun = grbm_method("dsm", 3, K=1)
    gradient, given = begun.method.gradient(begun.nets), begun.given
    with torch.no_grad():
        eager, *_ = gradient(*given)
        compiled, *_ = torch.compile(gradient, backend="aot_eager", dynamic=False)(*given)
        twice = tree_map(lambda t: torch.stack([t, t]), given)
        together, *_ = torch.vmap(gradient)(*twice)
    for name, value in eager.items():
        torch.testing.assert_close(compiled[name], value, rtol=1e-11, atol=1e-12)
        torch.testing.assert_close(together[name][1], value, rtol=1e-11, atol=1e-12)


def gradients_of_draws(begun: Started, draws: int) -> tuple[dict, dict]:
    """The exact gradient, and the estimates with other samples of h."""
    method, nets, state, v, noise, rates = begun
    gradient, rows = method.gradient(nets), partial(Rows.of, v=v)
    keys = [Key(1, i) for i in range(draws)]
    many = torch.stack([method.estimator.draw(nets, key, rows(key))["samples"] for key in keys])

    def at(samples: Tensor) -> dict:
        return gradient(state, v, noise | {"samples": samples}, rates)[0]

    with torch.no_grad():
        target, *_ = ScoreMatching(FreeEnergy(), method.loss).gradient(nets)(*begun.given)
        return target, torch.vmap(at, chunk_size=500)(many)


@pytest.mark.parametrize("loss", ["dsm", "ssm", "ksd"])
def test_it_is_unbiased_with_the_exact_posterior(loss: str) -> None:
    """The mean of many estimates is the exact gradient within their own standard error: a z-score for every entry."""
    draws = 2000
    target, estimates = gradients_of_draws(grbm_method(loss, 2, posterior=Exact()), draws)
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
        target, found = gradients_of_draws(grbm_method("dsm", L, posterior=Exact()), 200)
        errors.append(float((found["W"] - target["W"]).square().mean().sqrt()))
    assert 3.2 < errors[0] / errors[1] < 5.0


def test_the_control_variate_has_no_variance_where_q_is_the_posterior() -> None:
    begun = grbm_method("ssm", 2, posterior=Exact())
    exact = exact_estimate(begun)

    def scores(control_variate: bool) -> Tensor:
        noises = [drawn(begun.method, begun.nets, Key(i, 0), begun.v) for i in range(5)]
        return torch.stack(
            [estimate_of(begun, noise, control_variate=control_variate).score().detach() for noise in noises]
        )

    with torch.no_grad():
        expected = exact.score().expand(5, -1, -1)
    torch.testing.assert_close(scores(True), expected, rtol=1e-12, atol=1e-12)
    assert scores(False).std(0).max() > 0.01


def test_importance_sampling_tends_to_the_exact_score() -> None:
    method = ScoreMatching(Importance(K=0, L=20_000, divergence=Kl()), LOSSES["ksd"])
    begun = start(method, Nets(GRBM(D, H), Bernoulli(D, H), phi_optimizer=ADAM), (D,))
    v = begun.v
    surrogate = estimate_of(begun._replace(noise=drawn(method, begun.nets, Key(0, 0), v)))
    exact = exact_estimate(begun)
    with torch.no_grad():
        score = surrogate.score()
        torch.testing.assert_close(score, exact.score(), rtol=0, atol=0.02)
    assert surrogate.log_density is not None
    x = v.clone().requires_grad_()
    (slope,) = torch.autograd.grad(surrogate.log_density(x).sum(), x)
    torch.testing.assert_close(score, slope, rtol=1e-10, atol=1e-12)
