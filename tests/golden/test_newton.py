"""The best response by a Newton step: against quadrature, closed forms and a brute-force derivative, in fp64.

Shape tags: S samples of h in the divergence, R repeats, B batch, D visible, H latent, P replicas.
"""

import math
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from eblvm.engine import recipes
from eblvm.engine.autodiff.derivatives import grad, vjp
from eblvm.engine.autodiff.inverse import conjugate_gradients, floored_inverse
from eblvm.engine.errors import UserError
from eblvm.engine.methods import newton
from eblvm.engine.methods.lower_level import Fisher
from eblvm.engine.methods.newton import Newton
from eblvm.engine.methods.newton_step import antithetic, best_response
from eblvm.engine.nets.base import Energy, Separable
from eblvm.engine.nets.deep import CoupledHead
from eblvm.engine.nets.grbm import GRBM
from eblvm.engine.nets.posteriors import Bernoulli, Gaussian, Posterior
from eblvm.engine.types import Params
from eblvm.kernels import philox
from eblvm.kernels.philox import Key

SIGMA = 0.5
Score = Callable[[Params], Tensor]


def normal(purpose: int, *shape: int) -> Tensor:
    return philox.normal(Key(7, 0), purpose, shape[0], shape[1:], dtype=torch.float64)


class UserHead(nn.Module):
    """A head that the engine knows nothing of."""

    def __init__(self, latent: int):
        super().__init__()
        self.inner = nn.Linear(2 * latent, 12, device="meta")

    def forward(self, f: Tensor, h: Tensor) -> Tensor:
        joined = torch.cat(torch.broadcast_tensors(f + h, h), -1)
        return 2 * (1 + self.inner(joined).square()).sqrt().sum(-1) + 0.1 * h.square().sum(-1)


class Sampled(Separable):
    """An energy that hides its head's closed expectations."""

    has_expectations = False


def perceptron(*widths: int) -> nn.Sequential:
    layers = [layer for i, o in pairwise(widths) for layer in (nn.Linear(i, o), nn.ELU())]
    return nn.Sequential(*layers[:-1])


class Toy:
    """Two visible units, a drawn theta and a q that has followed it for some hundred steps."""

    def __init__(self, H: int, kind: str, steps: int = 300, B: int = 24):
        generator = torch.Generator().manual_seed(5 if kind == "user" else 6)
        head = UserHead(H) if kind == "user" else CoupledHead(H, 24)
        self.energy: Energy = (Sampled if kind == "sampled" else Separable)(perceptron(2, 32, H), head)
        self.posterior = Gaussian(perceptron(2, 64, 2 * H), H)
        self.theta, phi = (
            {
                k: (2 * torch.rand(p.shape, generator=generator, dtype=torch.float64) - 1) / math.sqrt(p.shape[-1])
                for k, p in model.named_parameters()
            }
            for model in (self.energy, self.posterior)
        )
        self.theta = {k: 2 * p if k.startswith("head") else p for k, p in self.theta.items()}
        eps = normal(1, B, 2)
        self.v, self.target = 1.2 * normal(0, B, 2) + SIGMA * eps, -eps / SIGMA
        phi = {k: p.requires_grad_() for k, p in phi.items()}
        adam = torch.optim.Adam(phi.values(), lr=5e-3)
        for step in range(steps):
            x, noise = 1.3 * normal(100 + 2 * step, B, 2), normal(101 + 2 * step, B, 4, H).movedim(1, 0)
            p = self.posterior.at(phi).params(x)
            with torch.no_grad():
                f = self.energy.at(self.theta).features(x)
            energy = self.energy.at(self.theta).head(f, self.posterior.rsample(p, noise)).mean(0)
            adam.zero_grad()
            (energy - p[1].sum(-1)).mean().backward()
            adam.step()
        self.phi = {k: p.detach() for k, p in phi.items()}
        self.p = self.posterior.at(self.phi).params(self.v)

    def gradient(self, score: Score, v: Tensor, target: Tensor) -> Tensor:
        found, _ = grad(lambda theta: ((score(theta) - target).square().sum(1).mean(), ()), self.theta)
        return torch.cat([found[name].flatten() for name in self.theta]).detach()

    def truth(self) -> Tensor:
        """The DSM loss's gradient with h integrated out on a grid."""
        H = self.posterior.latent
        axis = torch.linspace(-10, 10, 2001 if H == 1 else 141, dtype=torch.float64)
        grid = torch.stack(torch.meshgrid(*[axis] * H, indexing="ij"), -1).view(-1, 1, H)

        def score(theta: Params) -> Tensor:
            return grad(lambda x: ((-self.energy.at(theta).energy(x, grid)).logsumexp(0).sum(), ()), self.v)[0]

        return self.gradient(score, self.v, self.target)

    def mean_of_draws(self, options: Newton | None, repeats: int = 64) -> Tensor:
        """The mean gradient over draws, as one batch of repeats; without options that of BiSM at N = 0."""
        v, target, *p = (t.repeat(repeats, 1) for t in (self.v, self.target, *self.p))
        noise = normal(2, 1, len(v), self.posterior.latent)

        def score(theta: Params) -> Tensor:
            f, pull = vjp(lambda x: self.energy.at(theta).features(x), v)
            if options is not None:
                many = antithetic(normal(3, len(v), options.response_samples, self.posterior.latent).movedim(1, 0))
                response = best_response(options, self.energy, self.posterior, theta, f, tuple(p), many)
                return pull(options.cotangent(self.energy.at(theta), self.posterior, response, f, noise))
            h = self.posterior.rsample(tuple(p), noise[0])
            u, _ = grad(lambda x: (-self.energy.at(theta).head(x, h).sum(), ()), f)

            def log_q(x: Tensor) -> tuple[Tensor, tuple[()]]:
                return self.posterior.log_prob(self.posterior.at(self.phi).params(x), h).sum(), ()

            return pull(u) - grad(log_q, v)[0]

        return self.gradient(score, v, target)


@pytest.mark.parametrize("kind", ["deep", "sampled", "user"])
@pytest.mark.parametrize("H", [1, 2])
def test_bias_against_quadrature(H: int, kind: str) -> None:
    toy = Toy(H, kind)
    truth = toy.truth()

    def bias(options: Newton | None) -> float:
        return float((toy.mean_of_draws(options) - truth).norm() / truth.norm())

    assert bias(None) > 0.3
    assert bias(Newton(response_samples=8)) < 0.06


class LinearGaussian(Energy):
    """v = b + Q diag(gain) h + sigma noise, Q^T Q = 1, h ~ N(0, 1/prior): its posterior has independent units."""

    def __init__(self, D: int, H: int):
        super().__init__()
        self.q_DH = torch.linalg.qr(normal(20, D, H))[0]
        self.b, self.gain, self.log_prior = (nn.Parameter(torch.empty(n, device="meta")) for n in (D, H, H))

    def precision(self) -> Tensor:
        return torch.exp(self.log_prior) + self.gain.square() / SIGMA**2

    def features(self, v_BD: Tensor) -> tuple[Tensor, Tensor]:
        residual_BD = (v_BD - self.b) / SIGMA**2
        return 0.5 * SIGMA**2 * residual_BD.square().sum(-1), residual_BD @ self.q_DH * self.gain

    def head(self, f: tuple[Tensor, Tensor], h: Tensor) -> Tensor:
        return f[0] - (f[1] * h).sum(-1) + 0.5 * (self.precision() * h.square()).sum(-1)

    def score(self, v_BD: Tensor) -> Tensor:
        m_DH = self.q_DH * self.gain
        covariance = SIGMA**2 * torch.eye(len(m_DH), dtype=v_BD.dtype) + m_DH * torch.exp(-self.log_prior) @ m_DH.T
        return torch.linalg.solve(covariance, (self.b - v_BD).T).T


def surrogate_gradient(
    options: Newton, energy: Energy, posterior: Posterior, theta: Params, v: Tensor, p: Any, noise: Tensor,
    many: Tensor,
) -> Params:  # fmt: skip
    """Of a loss that is not linear in the score."""

    def loss(theta: Params) -> tuple[Tensor, tuple[()]]:
        f, pull = vjp(lambda x: energy.at(theta).features(x), v)
        response = best_response(options, energy, posterior, theta, f, p, many)
        return (pull(options.cotangent(energy.at(theta), posterior, response, f, noise)) + 0.3 * v).square().sum(), ()

    return grad(loss, theta)[0]


@pytest.mark.parametrize("solver", ["dense", "cg"])
@pytest.mark.parametrize("score", ["single", "pairs"])
@pytest.mark.parametrize("block", ["mean", "full"])
def test_linear_gaussian_model_is_exact(block: str, score: str, solver: str) -> None:
    """With q's std at its optimum and its mean anywhere. Pairs: in every draw. A single h: in the mean of a draw and
    its mirror image, as the dropped dA/dtheta leaves an error that is odd in the noise."""
    B, D, H = 5, 11, 8
    energy = LinearGaussian(D, H)
    theta = {"b": normal(21, D), "gain": 1 + 0.3 * normal(22, H), "log_prior": 0.5 * normal(23, H)}
    v, noise, many = normal(24, B, D), normal(25, 1, B, H), antithetic(normal(26, 4, B, H))
    log_std = -0.5 * energy.at(theta).precision().log().expand(B, H)
    p = (normal(27, B, H), log_std)
    options = Newton(response_samples=4, response_block=block, response_score=score, trust=100.0, solver=solver)
    expected, _ = grad(lambda t: ((energy.at(t).score(v) + 0.3 * v).square().sum(), ()), theta)
    draws = [
        surrogate_gradient(options, energy, Gaussian(nn.Identity(), H), theta, v, p, n, many) for n in (noise, -noise)
    ]
    for name, value in expected.items():
        found = draws[0][name] if score == "pairs" else (draws[0][name] + draws[1][name]) / 2
        torch.testing.assert_close(found, value, rtol=1e-8, atol=1e-8)


def test_a_fisher_minimiser_does_not_move() -> None:
    """Where q reaches p, the KL's step has nothing to correct in what the Fisher divergence has found."""
    B, D, H = 5, 11, 8
    energy, posterior = LinearGaussian(D, H), Gaussian(nn.Identity(), H)
    theta = {"b": normal(21, D), "gain": 1 + 0.3 * normal(22, H), "log_prior": 0.5 * normal(23, H)}
    f, precision = energy.at(theta).features(normal(24, B, D)), energy.at(theta).precision()
    p = (f[1] / precision, -0.5 * precision.log().expand(B, H))
    many = antithetic(normal(26, 4, B, H))
    assert Fisher()(lambda h: energy.at(theta).head(f, h), posterior, p, many).max() < 1e-20
    response = best_response(Newton(response_block="full"), energy, posterior, theta, f, p, many)
    assert response.info["response_slope"] < 1e-12
    for before, after in zip(p, response.p, strict=True):
        torch.testing.assert_close(after, before, rtol=0, atol=1e-12)


def test_grbm_gets_its_exact_posterior() -> None:
    """Theorem 1 of BiSM holds for any q: the step lands on p(h|v), so every draw has the exact gradient."""
    B, D, H = 7, 5, 4
    energy, posterior = GRBM(D, H), Bernoulli(D, H)
    theta = {"W": normal(30, D, H), "b": normal(31, D), "c": normal(32, H), "log_sigma": 0.3 * normal(33, D)}
    v, logits = normal(34, B, D), 3 * normal(35, B, H)
    noise = philox.logistic(Key(7, 0), 36, 1, (B, H), dtype=torch.float64)
    f = energy.at(theta).features(v)
    response = best_response(Newton(), energy, posterior, theta, f, logits, torch.empty(0))
    assert torch.equal(response.respond(f), energy.at(theta).posterior_logits(v))
    assert response.info["response_slope"] > 1
    assert response.info["response_slope_after"] == 0
    found = surrogate_gradient(Newton(), energy, posterior, theta, v, logits, noise, torch.empty(0))
    expected, _ = grad(lambda t: ((energy.at(t).score(v) + 0.3 * v).square().sum(), ()), theta)
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, rtol=1e-10, atol=1e-10)


def deep_case(kind: str, H: int = 3, B: int = 5, S: int = 4) -> tuple[Toy, dict[str, Any]]:
    toy = Toy(H, kind, steps=100, B=B)
    place = {"v": toy.v, "p": toy.p, "noise": normal(40, 1, B, H), "many": antithetic(normal(41, S, B, H))}
    return toy, place


def run(toy: Toy, options: Newton, theta: Params | None = None, **place: Any) -> Params:
    return surrogate_gradient(options, toy.energy, toy.posterior, theta or toy.theta, **place)


def assert_same(found: Params, expected: Params, tolerance: float) -> None:
    for name, value in expected.items():
        assert (found[name] - value).abs().max() <= tolerance * value.abs().max(), name


def brute_force(toy: Toy, options: Newton, v: Tensor, p: Any, noise: Tensor, many: Tensor) -> Params:
    """Sample by sample, everything through v by torch.func, the Hessian and its inverse written out."""
    H = toy.posterior.latent

    def features(theta: Params, x: Tensor) -> Tensor:
        inner = F.elu(x @ theta["feature_net.0.weight"].T + theta["feature_net.0.bias"])
        return inner @ theta["feature_net.2.weight"].T + theta["feature_net.2.bias"]

    def head(theta: Params, f: Tensor, h: Tensor) -> Tensor:
        if "head_net.inner.weight" in theta:
            return toy.energy.at(theta).head(f, h)
        joined = torch.cat([f + h, h], -1)
        return F.elu(joined @ theta["head_net.linear.weight"].T + theta["head_net.linear.bias"]).square().sum(-1)

    def one(theta: Params, x: Tensor, mean: Tensor, log_std: Tensor, n: Tensor, n_SH: Tensor) -> Tensor:
        eta = torch.cat([mean, log_std])
        moved = slice(0, H if options.response_block == "mean" else 2 * H)

        def kl(theta: Params, f: Tensor, e: Tensor) -> Tensor:
            return head(theta, f, e[:H] + e[H:].exp() * n_SH).mean() - e[H:].sum()

        fixed = {k: t.detach() for k, t in theta.items()}
        second = torch.func.jacrev(torch.func.grad(kl, 2), 2)(fixed, features(fixed, x), eta)[moved, moved].detach()
        unit = torch.cat([log_std.exp(), torch.full_like(log_std, 0.5**0.5)])[moved]
        values, vectors = torch.linalg.eigh(unit[:, None] * second * unit)
        a = unit[:, None] * (vectors @ torch.diag(1 / values.abs().clamp_min(options.floor)) @ vectors.T) * unit

        def respond(theta: Params, f: Tensor, point: Tensor) -> Tensor:
            step = a @ torch.func.grad(kl, 2)(theta, f, point)[moved]
            share = (options.trust / (step.detach() / unit).square().mean().sqrt()).clamp(max=1).detach()
            return torch.cat([point[moved] - share * step, point[moved.stop :]])

        for _ in range(options.response_steps):
            eta = respond(fixed, features(fixed, x), eta).detach()

        best = respond(theta, features(theta, x), eta)
        both = (best[:H] + best[H:].exp() * n, best[:H] - best[H:].exp() * n)
        samples = both if options.response_score == "pairs" else both[:1]

        def log_ratio(y: Tensor) -> Tensor:
            f = features(theta, y)
            mean, log_std = respond(theta, f, eta).split(H)
            ratios = [
                -head(theta, f, h) + (0.5 * ((h - mean) / log_std.exp()).square() + log_std).sum() for h in samples
            ]
            return torch.stack(ratios).mean()

        return (torch.func.grad(log_ratio)(x) + 0.3 * x).square().sum()

    def loss(theta: Params) -> Tensor:
        rows = zip(v, *p, noise[0], many.movedim(1, 0), strict=True)
        return torch.stack([one(theta, *row) for row in rows]).sum()

    return torch.func.grad(loss)(toy.theta)


@pytest.mark.parametrize("trust", [100.0, 0.05])
@pytest.mark.parametrize("score", ["single", "pairs"])
@pytest.mark.parametrize("block", ["mean", "full"])
@pytest.mark.parametrize("kind", ["sampled", "user"])
def test_one_pass_equals_brute_force(kind: str, block: str, score: str, trust: float) -> None:
    toy, place = deep_case(kind)
    options = Newton(response_samples=4, response_block=block, response_score=score, trust=trust, floor=0.8)
    assert_same(run(toy, options, **place), brute_force(toy, options, **place), 1e-9)


@pytest.mark.parametrize("score", ["pairs", "mean"])
@pytest.mark.parametrize("block", ["mean", "full"])
def test_closed_expectations_are_the_limit_of_many_samples(block: str, score: str) -> None:
    """With 64 and 8,192 samples of h in D and, for the mean score, in the score: the difference is their error."""
    errors = []
    for S in (2**6, 2**13):
        toy, place = deep_case("deep", S=S)
        place["noise"] = normal(42, S // 2 if score == "mean" else 1, *toy.p[0].shape)
        options = Newton(response_samples=S, response_block=block, response_score=score)
        expected = run(toy, options, **place)
        toy.energy = Sampled(toy.energy.feature_net, toy.energy.head_net)
        found = run(toy, options, **place)
        errors.append(max(float(((found[k] - g).norm() / g.norm()).detach()) for k, g in expected.items()))
    assert errors[1] < 0.03
    assert errors[1] < errors[0] / 4


@pytest.mark.parametrize("score", ["single", "pairs"])
def test_cotangent_is_the_derivative_of_the_log_ratio(score: str) -> None:
    toy, place = deep_case("deep")
    theta, v = toy.theta, place["v"]
    f, pull = vjp(lambda x: toy.energy.at(theta).features(x), v)
    options = Newton(response_samples=4, response_score=score)
    response = best_response(options, toy.energy, toy.posterior, theta, f, toy.p, place["many"])
    u = options.cotangent(toy.energy.at(theta), toy.posterior, response, f, place["noise"])
    h = options.latents(toy.posterior, response.p, place["noise"])

    def log_density(x: Tensor) -> tuple[Tensor, tuple[()]]:
        f = toy.energy.at(theta).features(x)
        return newton.log_ratio(toy.energy.at(theta), toy.posterior, response, f, h).sum(), ()

    torch.testing.assert_close(pull(u), grad(log_density, v)[0], rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("block", ["mean", "full"])
@pytest.mark.parametrize("kind", ["deep", "user"])
def test_cg_equals_dense(kind: str, block: str) -> None:
    toy, place = deep_case(kind, S=16)
    dense = Newton(response_samples=16, response_block=block, floor=1e-3, trust=100.0)
    assert_same(run(toy, replace(dense, solver="cg"), **place), run(toy, dense, **place), 1e-9)


@pytest.mark.parametrize("options", [Newton(response_samples=4), Newton(response_samples=4, solver="cg", floor=1e-3)])
@pytest.mark.parametrize("kind", ["deep", "user"])
def test_replicas_equal_a_loop(kind: str, options: Newton) -> None:
    toy, place = deep_case(kind)
    thetas = {k: torch.stack([t, 1.1 * t, 0.9 * t]) for k, t in toy.theta.items()}
    found = torch.func.vmap(lambda theta: run(toy, options, theta, **place))(thetas)
    for i in range(3):
        assert_same(
            {k: g[i] for k, g in found.items()},
            run(toy, options, {k: t[i] for k, t in thetas.items()}, **place),
            1e-9,
        )


@pytest.mark.parametrize("options", [Newton(response_samples=4), Newton(response_samples=4, solver="cg", floor=1e-3)])
@pytest.mark.parametrize("kind", ["deep", "user"])
def test_saved_tensors_can_be_counted(kind: str, options: Newton) -> None:
    """torch.func refuses saved-tensor hooks, so plain autograd must not use it."""
    toy, place = deep_case(kind)
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: t):
        found = run(toy, options, **place)
    assert_same(found, run(toy, options, **place), 1e-12)


@pytest.mark.parametrize("kind", ["deep", "user"])
def test_shapes_on_the_meta_device(kind: str) -> None:
    toy, place = deep_case(kind)
    theta, place = tree_map(lambda t: t.to("meta"), (toy.theta, place))
    for name, g in run(toy, Newton(response_samples=4), theta, **place).items():
        assert g.shape == toy.theta[name].shape


def test_compiled_gradient() -> None:
    toy, place = deep_case("deep")
    options = Newton(response_samples=4)
    compiled = torch.compile(lambda theta: run(toy, options, theta, **place), dynamic=False, backend="aot_eager")
    with torch.no_grad():
        assert_same(compiled(toy.theta), run(toy, options, **place), 1e-9)


def test_a_long_step_is_cut_and_counted() -> None:
    toy, place = deep_case("user")
    mean, log_std = toy.p
    far = mean.clone()
    far[0] += 40
    f = toy.energy.at(toy.theta).features(toy.v)
    options = Newton(response_samples=4, trust=1.5, response_steps=0)
    response = best_response(options, toy.energy, toy.posterior, toy.theta, f, (far, log_std), place["many"])
    moved = (response.respond(f)[0] - far) / log_std.exp()
    lengths = moved.square().mean(-1).sqrt()
    assert lengths[0].item() == pytest.approx(1.5)
    assert (lengths[1:] < 1.5).all()
    assert response.info["response_cut"].item() == pytest.approx(1 / len(far))
    twice = replace(options, response_steps=1)
    response = best_response(twice, toy.energy, toy.posterior, toy.theta, f, (far, log_std), place["many"])
    lengths = ((response.respond(f)[0] - far) / log_std.exp()).square().mean(-1).sqrt()
    assert 1.5 < lengths[0] <= 3.0
    assert response.info["response_cut"].item() == pytest.approx(1 / len(far))
    assert response.info["response_step"] > 1.5 / len(far)


class Quadratic(Energy):
    """1/2 h^T M h - f.h: its curvature is M."""

    def __init__(self, m_HH: Tensor):
        super().__init__()
        self.m_HH = m_HH

    def head(self, f: Tensor, h: Tensor) -> Tensor:
        return 0.5 * ((h @ self.m_HH) * h).sum(-1) - (f * h).sum(-1)


@pytest.mark.parametrize("solver", ["dense", "cg"])
def test_curvature_has_a_floor(solver: str) -> None:
    """1/8 is raised to 1/4, -2 is reflected to 2 by the dense solver; cg stops where it meets either."""
    B, H = 2, 4
    values = torch.tensor([4.0, 1.0, 0.125, -2.0], dtype=torch.float64)
    vectors = torch.linalg.qr(normal(50, H, H))[0]
    energy, posterior = Quadratic(vectors * values @ vectors.T), Gaussian(nn.Identity(), H)
    p = (torch.zeros(B, H, dtype=torch.float64),) * 2
    f = normal(51, B, H)
    options = Newton(response_samples=2, floor=0.25, trust=1e6, solver=solver, response_steps=0)
    response = best_response(options, energy, posterior, {}, f, p, antithetic(normal(52, 2, B, H)))
    mean, _ = response.respond(f)
    if solver == "dense":
        inverse = torch.tensor([1 / 4, 1, 4, 1 / 2], dtype=torch.float64)
        torch.testing.assert_close(mean, f @ (vectors * inverse @ vectors.T))
        assert response.info["response_floored"] == 0.5
    else:
        assert mean.isfinite().all()
        assert response.info["response_floored"] == 1


def test_a_curvature_that_is_not_finite_takes_no_step() -> None:
    m_BEE = torch.eye(3, dtype=torch.float64).repeat(2, 1, 1) * 2
    m_BEE[1, 0, 2] = math.nan
    inverse_BEE, floored_B = floored_inverse(m_BEE, 0.1)
    torch.testing.assert_close(inverse_BEE[0], torch.eye(3, dtype=torch.float64) / 2)
    assert inverse_BEE[1].abs().max() == 0
    assert floored_B.tolist() == [0, 0]


def test_conjugate_gradients_of_a_zero_right_side() -> None:
    x_BE, stopped_B = conjugate_gradients(lambda x: 3 * x, torch.tensor([[0.0, 0.0], [3.0, 6.0]]), 0.1, 5)
    torch.testing.assert_close(x_BE, torch.tensor([[0.0, 0.0], [1.0, 2.0]]))
    assert stopped_B.tolist() == [0, 0]


@pytest.mark.parametrize("kind", ["deep", "user"])
def test_algebra_stays_fp32_under_autocast(kind: str) -> None:
    toy, place = deep_case(kind)
    theta = {k: t.float() for k, t in toy.theta.items()}
    place = {k: tuple(t.float() for t in x) if isinstance(x, tuple) else x.float() for k, x in place.items()}
    options = Newton(response_samples=4)
    with torch.autocast("cpu", torch.bfloat16):
        f = toy.energy.at(theta).features(place["v"])
        response = best_response(options, toy.energy, toy.posterior, theta, f, place["p"], place["many"])
        mean, _ = response.respond(f)
    assert f.dtype == torch.bfloat16
    assert mean.dtype == torch.float32
    f64 = toy.energy.at(toy.theta).features(toy.v)
    many = place["many"].double()
    exact, _ = best_response(options, toy.energy, toy.posterior, toy.theta, f64, toy.p, many).respond(f64)
    assert (mean - exact).abs().max() < 0.05 * (exact - toy.p[0]).abs().max() + 0.02


def test_errors_say_what_to_do() -> None:
    config = recipes.recipe("digits", model="deep").replaced(best_response="newton")
    with pytest.raises(UserError, match="even number"):
        config.replaced(response_samples=3).check()
    with pytest.raises(UserError, match="unknown response-block 'all'"):
        config.replaced(response_block="all")
    with pytest.raises(UserError, match="expected a positive number"):
        config.replaced(floor=0.0)
    with pytest.raises(UserError, match="does not read --N"):
        config.replaced(N=5)
    with pytest.raises(UserError, match="no second derivative"):
        config.replaced(activation="relu").check()
    with pytest.raises(UserError, match="'unroll'"):
        best_response(Newton(), Quadratic(torch.eye(1)), Posterior(), {}, torch.empty(1), (), torch.empty(0))
