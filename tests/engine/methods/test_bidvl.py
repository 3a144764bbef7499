"""BiDVL: every gradient against autograd of its definition, Theorem 1 by summation, one pass of the generator."""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from eblvm.engine.config import Config
from eblvm.engine.methods.base import Info, Nets, State, empty_weights
from eblvm.engine.methods.bidvl import Bidvl
from eblvm.engine.methods.bidvl_levels import Generated, Levels
from eblvm.engine.nets.base import Energy
from eblvm.engine.nets.bidvl import part
from eblvm.engine.nets.posteriors import Gaussian
from eblvm.engine.optim.replicas import pick
from eblvm.engine.recipes import recipe
from eblvm.kernels import philox
from eblvm.kernels.philox import Key
from tests.engine.methods.started import first_step, under_way

TINY = {
    "width": 2, "posterior_width": 2, "generator_width": 2, "latent": 3, "batch": 5, "dtype": "float64", "steps": 10,
}  # fmt: skip


class Case:
    """A tiny model under way, with a batch and its noise."""

    def __init__(self, **changes: Any):
        self.config: Config = recipe("digits", method="bidvl").replaced(**TINY | changes)
        self.config.check()
        self.images = philox.uniform(Key(1, 0), 0, self.config["batch"], (1, 8, 8), dtype=torch.float64)
        self.v = 2 * self.images - 1
        self.method, self.nets, self.state, _, self.noise, self.rates = first_step(self.config, self.images)
        assert isinstance(self.method, Bidvl)
        self.levels = Levels(self.method, self.nets)
        self.h, self.eps = self.noise["h"][0], self.noise["eps"][0]
        self.theta, self.phi = (
            {k: p.clone().requires_grad_() for k, p in weights.params.items()}
            for weights in (self.state.theta, self.state.phi)
        )

    def upper_gradient(self) -> tuple[dict[str, Tensor], State, Info]:
        with torch.no_grad():
            return self.method.gradient(self.nets)(self.state, self.images, self.noise, self.rates)

    def step(self) -> tuple[State, Info]:
        optimizer = self.config.optimisation.theta_optimizer()
        alternating = self.method.alternating(self.nets, optimizer, None, in_place=False)
        with torch.no_grad():
            return alternating(self.state, self.images, self.noise, self.rates)

    # The nets, called with explicit tensors and nothing of the method.

    def energy(self, v: Tensor, h: Tensor) -> Tensor:
        vectors = part(self.state.buffers, "energy.")
        return self.nets.energy.at(self.theta | vectors).energy(v, h)

    def encode(self, v: Tensor) -> tuple[Tensor, Tensor]:
        return self.nets.posterior.at(part(self.phi, "encoder.")).params(v, [])

    def decode(self, h: Tensor) -> Tensor:
        return self.nets.generator.at(part(self.phi, "generator.")).decode(h, [])

    def divergence(self) -> Tensor:
        """D(p(v, h) || q(h|v)) up to a constant."""
        mean, log_std = self.encode(self.decode(self.h))
        weight = self.config["latent_weight"]
        if self.config["latent_term"] == "mean":
            return weight * (mean - self.h).square().mean()
        if self.config["latent_term"] == "sum":
            return weight * (mean - self.h).square().sum(-1).mean()
        return -weight * torch.distributions.Normal(mean, log_std.exp()).log_prob(self.h).sum(-1).mean()

    def weighted(self, ratio: float) -> Tensor:
        """r [|v - G(h)|^2 + KL(q(h|v) || N(0, I))] of images in [-1, 1]."""
        mean, log_std = self.encode(self.v)
        rebuilt = self.decode(mean + log_std.exp() * self.eps)
        error = (self.v - rebuilt).square().sum((1, 2, 3))
        q, prior = torch.distributions.Normal(mean, log_std.exp()), torch.distributions.Normal(0.0, 1.0)
        return ratio * (error + torch.distributions.kl_divergence(q, prior).sum(-1)).mean()

    def lower_gradient(self) -> dict[str, Tensor]:
        with torch.no_grad():
            ratio = torch.full((len(self.v),), self.config["ratio"], dtype=torch.float64)
            fake = self.levels.generated(self.state.phi.params, self.h)
            return self.levels.lower_gradient(self.state, self.v, fake, self.h, self.eps, ratio)[0]


def derivative(loss: Tensor, of: dict[str, Tensor]) -> dict[str, Tensor]:
    found = torch.autograd.grad(loss, list(of.values()), materialize_grads=True, retain_graph=True)
    return dict(zip(of, found, strict=True))


def only(of: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {k: g if k.startswith(prefix) else torch.zeros_like(g) for k, g in of.items()}


def total(*trees: dict[str, Tensor]) -> dict[str, Tensor]:
    return {k: sum(tree[k] for tree in trees) for k in trees[0]}


def assert_equal(got: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    assert set(got) == set(expected)
    assert any(float(g.abs().max()) > 1e-8 for g in expected.values())
    for name, g in expected.items():
        torch.testing.assert_close(got[name], g, rtol=1e-8, atol=1e-12, msg=lambda m, n=name: f"{n}: {m}")


def assert_same_state(got: State, expected: State) -> None:
    for field in ("theta", "phi"):
        assert_equal(getattr(got, field).params, getattr(expected, field).params)
    assert_equal(got.buffers, expected.buffers)


@pytest.mark.parametrize("energy", ["decoupled", "joint"])
@pytest.mark.parametrize("upper", ["plain", "hinge"])
def test_upper_gradient_is_eq_14_and_23(energy: str, upper: str) -> None:
    opposite = "none" if energy == "joint" else "offset"
    case = Case(upper=upper, output="real", energy=energy, opposite=opposite)
    got, _, info = case.upper_gradient()
    h_q, log_q = case.h, torch.zeros(())
    if energy == "joint":
        mean, log_std = case.encode(case.v)
        h_q = (mean + log_std.exp() * case.eps).detach()
    data, model = case.energy(case.v, h_q), case.energy(case.decode(case.h).detach(), case.h)
    loss = data.mean() - model.mean()
    if upper == "hinge":
        loss = torch.clamp(1 + data, min=0).mean() + torch.clamp(1 - model, min=0).mean()
    assert_equal(got, derivative(loss + log_q, case.theta))
    torch.testing.assert_close(info["energy_data"], data.mean().detach())


@pytest.mark.parametrize(("latent", "weight"), [("mean", 1.0), ("density", 0.5), ("sum", 1e-4)])
def test_offset_lower_gradient_is_eq_13(latent: str, weight: float) -> None:
    case = Case(latent_term=latent, latent_weight=weight)
    energy = derivative(case.energy(case.decode(case.h), case.h).mean(), case.phi)
    weighted = derivative(case.weighted(case.config["ratio"]), case.phi)
    divergence = derivative(case.divergence(), case.phi)
    assert_equal(case.lower_gradient(), total(energy, weighted, only(divergence, "generator.")))


@pytest.mark.parametrize("latent", ["mean", "density"])
@pytest.mark.parametrize("opposite", ["complete", "literal"])
def test_complete_gradients_are_eq_11_and_12(opposite: str, latent: str) -> None:
    case = Case(opposite=opposite, latent_term=latent)
    energy = derivative(case.energy(case.decode(case.h), case.h).mean(), case.phi)
    weighted = derivative(case.weighted(case.config["ratio"]), case.phi)
    divergence = derivative(case.divergence(), case.phi)
    assert_equal(case.lower_gradient(), total(energy, weighted, divergence))

    with torch.no_grad():
        fake = case.decode(case.h).detach()
        got = case.levels.encoder_gradient(case.state.phi.params, case.state.buffers, fake, case.h)
    if opposite == "literal":
        loss = -case.divergence()
    else:
        mean, log_std = case.encode(fake)
        q, prior = torch.distributions.Normal(mean, log_std.exp()), torch.distributions.Normal(0.0, 1.0)
        loss = torch.distributions.kl_divergence(q, prior).sum(-1).mean()
        loss = loss / 3 if latent == "mean" else loss
    expected = {k: g for k, g in derivative(loss, case.phi).items() if k.startswith("encoder.")}
    assert_equal(got, expected)


def test_offset_and_complete_differ_by_exactly_the_opposite_terms() -> None:
    offset, complete = Case(), Case(opposite="literal")
    difference = {k: complete.lower_gradient()[k] - g for k, g in offset.lower_gradient().items()}
    lower_term = only(derivative(complete.divergence(), complete.phi), "encoder.")
    assert_equal(difference, lower_term)
    with torch.no_grad():
        fake = complete.decode(complete.h).detach()
        upper_term = complete.levels.encoder_gradient(
            complete.state.phi.params, complete.state.buffers, fake, complete.h
        )
    assert_equal(upper_term, {k: -lower_term[k] for k in upper_term})  # the two cancel: that is the offset


def test_without_opposite_terms_and_with_a_joint_energy() -> None:
    case = Case(opposite="none")
    energy = derivative(case.energy(case.decode(case.h), case.h).mean(), case.phi)
    assert_equal(case.lower_gradient(), total(energy, derivative(case.weighted(0.05), case.phi)))

    for divergence, ratio in (("kl", 0.0), ("symmetric", 0.05)):
        case = Case(energy="joint", opposite="none", divergence=divergence)
        mean, log_std = case.encode(case.v)
        h_q = mean + log_std.exp() * case.eps
        log_q = torch.distributions.Normal(mean, log_std.exp()).log_prob(h_q).sum(-1)
        loss = case.energy(case.decode(case.h), case.h).mean() + (log_q + case.energy(case.v, h_q)).mean()
        assert_equal(case.lower_gradient(), derivative(loss + case.weighted(ratio), case.phi))


def test_kl_is_advils_form() -> None:
    case = Case(divergence="kl", opposite="complete")
    loss = case.energy(case.decode(case.h), case.h).mean() + case.divergence()
    assert_equal(case.lower_gradient(), derivative(loss, case.phi))


def test_importance_ratios() -> None:
    e = torch.tensor([0.0, 0.1, 3.0])
    gap = e.mean() - e
    expected = {
        "none": torch.ones(3),
        "sigmoid": torch.sigmoid(gap),
        "clamped": torch.exp(gap).clamp(0.8, 1.2),
    }
    for bias, factor in expected.items():
        torch.testing.assert_close(Case(ratio_bias=bias, ratio=0.2).levels.importance(e), 0.2 * factor)


# Theorem 1, on a table of energies where everything is a sum.


class Table(Energy):
    """E(v, h) = table[v, h] of indices, or of v alone."""

    def __init__(self, marginal: bool):
        super().__init__()
        self.marginal = marginal
        self.table = torch.nn.Parameter(torch.empty(4) if marginal else torch.empty(4, 3))

    def energy(self, v: Tensor, h: Tensor) -> Tensor:
        return self.table[v[:, 0].long()] if self.marginal else self.table[v[:, 0].long(), h[:, 0].long()]


class Given(Gaussian):
    """A posterior whose sample is its noise: the batch lists the values of h itself, as often as q has them."""

    def __init__(self) -> None:
        super().__init__(torch.nn.Identity(), 1)

    def params(self, v: Tensor, seen: Any) -> Any:
        return v, v

    def rsample(self, p: Any, noise: Tensor) -> Tensor:
        return noise

    def log_prob(self, p: Any, h: Tensor) -> Tensor:
        return torch.zeros(len(h), dtype=h.dtype)


@pytest.mark.parametrize("joint", [True, False])
def test_theorem_1_exact_variational_models_give_the_likelihood_gradient(joint: bool) -> None:
    counts = torch.tensor([[2, 1, 3], [1, 1, 4], [3, 3, 0], [0, 5, 1]], dtype=torch.float64)  # p(v, h) = counts / 24
    data = torch.tensor([2.0, 0, 1, 1], dtype=torch.float64) / 4  # q(v); every v has 6 of the 24 places
    assert (counts.sum(1) == 6).all()
    table = -torch.log(counts + 1e-300) if joint else -torch.log(counts.sum(1))
    theta = {"table": table.clone()}

    # As often as p(v, h) has them; of the data every v as often as q(v) p(h|v).
    pairs = [(v, h) for v in range(4) for h in range(3) for _ in range(int(counts[v, h]))]
    listed = [pair for pair in pairs for _ in range(int(4 * data[pair[0]]))]
    model_v, h = (torch.tensor([[float(pair[i])] for pair in pairs]) for i in (0, 1))
    data_v, h_q = (torch.tensor([[float(pair[i])] for pair in listed]) for i in (0, 1))
    options = Bidvl(K=1, N=0, energy="joint" if joint else "decoupled")
    levels = Levels(options, Nets(Table(not joint), Given()))
    state = State(empty_weights()._replace(params=theta), empty_weights())
    fake = Generated(model_v, lambda u: {}, [])
    noise = {"h": [h], "eps": [h_q if joint else h]}
    assert len(data_v) == len(model_v) == 24
    with torch.no_grad():
        gradient, *_ = levels.upper_gradient(state, data_v, fake, noise, {})

    leaf = table.clone().requires_grad_()
    marginal = -torch.logsumexp(-leaf, 1) if joint else leaf
    log_p = -marginal - torch.logsumexp(-marginal, 0)
    (expected,) = torch.autograd.grad(-(data * log_p).sum(), leaf)
    torch.testing.assert_close(gradient["table"], expected, rtol=1e-10, atol=1e-12)
    assert expected.abs().max() > 0.1


# One pass of the generator.


def two_passes(case: Case) -> State:
    """The same training step with a pass of the generator for each level, the first not counted in its statistics."""
    levels, optimisation = case.levels, case.config.optimisation
    with torch.no_grad():
        state = case.method._refreshed(case.state)
        first = levels.generated(state.phi.params, case.h)
        gradient, data_B, _ = levels.upper_gradient(state, case.v, first, case.noise, case.rates)
        theta, _ = optimisation.theta_optimizer().move(state.theta, gradient, case.rates["theta"])
        state = state._replace(theta=theta)
        second = levels.generated(state.phi.params, case.h)
        ratio_B = levels.importance(data_B)
        gradient, buffers, _ = levels.lower_gradient(state, case.v, second, case.h, case.eps, ratio_B)
        phi = case.nets.phi_optimizer.step(state.phi, gradient, case.rates["phi"])
    return state._replace(phi=phi, buffers=buffers)


def iterated(w: Tensor, u: Tensor) -> Tensor:
    """One power iteration, written out."""
    v = u @ w.flatten(1)
    u = w.flatten(1) @ (v / v.norm())
    return u / u.norm()


def test_a_power_iteration_in_every_pass() -> None:
    """E(v) and E(v~) of the upper level, E(v~) of the lower one at the moved theta: three a step, each with its own."""
    case = Case(power_iteration="pass")
    name = "trunk.0.weight"
    u0, w0 = case.state.buffers["energy.trunk.0.u"], case.state.theta.params[name]
    u1 = iterated(w0, u0)
    u2 = iterated(w0, u1)
    gradient, *_ = case.upper_gradient()
    buffers = case.state.buffers

    def energy(v: Tensor, iterations: int) -> Tensor:
        vectors = dict(buffers)
        for _ in range(iterations):
            for key, u in vectors.items():
                if key.startswith("energy.") and key.endswith(".u"):
                    weight = case.state.theta.params[key.removeprefix("energy.").removesuffix("u") + "weight"]
                    vectors[key] = iterated(weight, u)
        held = case.theta | part(vectors, "energy.")
        return case.nets.energy.at(held).energy(v, case.h)

    loss = energy(case.v, 1).mean() - energy(case.decode(case.h).detach(), 2).mean()
    assert_equal(gradient, derivative(loss, case.theta))
    after, _ = case.step()
    torch.testing.assert_close(after.buffers["energy.trunk.0.u"], iterated(after.theta.params[name], u2))
    once, _ = Case().step()
    torch.testing.assert_close(once.buffers["energy.trunk.0.u"], u1)


@pytest.mark.parametrize("bias", ["none", "sigmoid"])
def test_one_pass_equals_two_passes(bias: str) -> None:
    case = Case(ratio_bias=bias)
    one, _ = case.step()
    two = two_passes(case)
    assert_same_state(one, two)
    assert not torch.equal(one.theta.params["trunk.0.weight"], case.state.theta.params["trunk.0.weight"])


def test_running_statistics_follow_every_counted_pass_once() -> None:
    """The generator's first batch norm: prior and reconstruction pass; the encoder's: data, not generated images."""
    case = Case()
    after, _ = case.step()
    first = case.state.phi.params["generator.net.0.linear.weight"]
    mean, log_std = case.encode(case.v)
    expected = torch.zeros(4, dtype=torch.float64)
    for h in (case.h, (mean + log_std.exp() * case.eps).detach()):
        x = (h @ first.T).view(5, 4, 4, 4)
        expected = 0.9 * expected + 0.1 * x.mean((0, 2, 3))
    torch.testing.assert_close(after.buffers["generator.net.1.mean"], expected)
    x = F.conv2d(case.v, case.state.phi.params["encoder.net.0.weight"], padding=1)
    torch.testing.assert_close(after.buffers["encoder.net.1.mean"], 0.1 * x.mean((0, 2, 3)))
    expected_var = 0.9 + 0.1 * x.var((0, 2, 3), unbiased=True)
    torch.testing.assert_close(after.buffers["encoder.net.1.var"], expected_var)


def test_lower_steps_see_the_moved_energy_and_their_own_noise() -> None:
    case = Case(K=2)
    after, info = case.step()
    assert len(case.noise["h"]) == 2
    assert float(after.phi.moments.step_count) == 2
    assert {"loss", "lower", "energy_data", "energy_model", "reconstruction", "latent", "gradient_norm"} <= set(info)


@pytest.mark.parametrize("memory", ["store", "recompute"])
def test_unrolled_gradient_is_the_total_derivative(memory: str) -> None:
    """Through N = 3 steps of Adam on phi, against finite differences along a random direction of theta.

    The difference is small: the nets have kinks."""
    case = Case(N=3, unroll_memory=memory, lower_lr=1e-2)
    # Moments of a run under way: the derivative of Adam's first step is that of a sign.
    case.state = case.state._replace(phi=under_way(case.state.phi, 5.0, v=0.5))
    gradient, *_ = case.upper_gradient()
    direction = {
        k: philox.normal(Key(3, i), 0, *p.shape[:1], tuple(p.shape[1:]), dtype=p.dtype)
        for i, (k, p) in enumerate(case.state.theta.params.items())
    }
    state = case.state

    def loss(step: float) -> Tensor:
        theta = {k: p + step * direction[k] for k, p in state.theta.params.items()}
        case.state = state._replace(theta=state.theta._replace(params=theta))
        return case.upper_gradient()[2]["loss"]

    expected = (loss(1e-7) - loss(-1e-7)) / 2e-7
    got = sum((gradient[k] * direction[k]).sum() for k in gradient)
    held = Case()
    held.noise = case.noise
    without = sum((g * direction[k]).sum() for k, g in held.upper_gradient()[0].items())
    torch.testing.assert_close(got, expected, rtol=1e-6, atol=1e-8)
    assert abs(without - expected) > 0.1 * abs(expected)


def test_replicas_equal_single_steps() -> None:
    case = Case()
    v = torch.stack([case.images, 1 - case.images])
    begun = first_step(case.config.replaced(replicas=2), v)
    step = begun.method.alternating(begun.nets, case.config.optimisation.theta_optimizer(), None, in_place=False)
    with torch.no_grad():
        together, _ = torch.vmap(step)(*begun.given)
        singles = [step(*pick(begun.given, r))[0] for r in range(2)]
    for r, alone in enumerate(singles):
        assert_same_state(pick(together, r), alone)
