"""The one-pass gradient of deep models against the double loop that recomputes the energy in every step, in fp64."""

from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

from eblvm.engine.methods import lower_level
from eblvm.engine.methods.base import Nets
from eblvm.engine.methods.losses.mdsm import Mdsm
from eblvm.engine.methods.score_matching import ScoreMatching
from eblvm.engine.nets.base import Energy, Separable
from eblvm.engine.nets.deep import CoupledHead, DeepEnergy, ResNet
from eblvm.engine.nets.posteriors import ConvGaussian
from eblvm.kernels import philox
from eblvm.kernels.philox import Key
from tests.engine.methods.started import ADAM, BETAS, Started, bism_of, cast, drawn, rates_of, under_way
from tests.golden import brute_force

B, SHAPE, H, LR, UNROLL_LR = 5, (2, 8, 8), 3, 0.01, 1e-3
LOSS = Mdsm((0.1, 1.0), "geometric", 0.1)
TOLERANCE = 1e-9  # relative to the largest entry of each gradient


class UserHead(nn.Module):
    """An energy of both arguments with no structure: one MLP of (v, h)."""

    def __init__(self):
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.first, self.second = nn.Linear(2 * 64 + H, 7), nn.Linear(7, 1)
        for p in self.parameters():
            p.data = torch.randn(p.shape, generator=generator, dtype=torch.float64) / 8

    def forward(self, v: Tensor, h: Tensor) -> Tensor:
        v = v.flatten(1).expand(*h.shape[:-1], -1)
        return self.second(F.softplus(self.first(torch.cat([v, h], -1)))).squeeze(-1).square() + 0.1 * h.square().sum(
            -1
        )


def energy_of(kind: str, checkpoint: str = "none") -> Energy:
    if kind == "unstructured":
        return Separable(nn.Identity(), UserHead())
    return DeepEnergy(ResNet(SHAPE, H, 2, 12, checkpoint=checkpoint), CoupledHead(H, 6))


def plain_energy(kind: str, theta: dict, v: Tensor, h: Tensor) -> Tensor:
    """The same energies without anything of the engine's, from the parameters."""
    if kind == "unstructured":
        inner = {k.removeprefix("head_net."): p for k, p in theta.items()}
        return functional_call(UserHead(), inner, (v, h))

    def conv(name: str, x: Tensor, padding: int) -> Tensor:
        return F.conv2d(x, theta[f"{name}.weight"], theta[f"{name}.bias"], padding=padding)

    x = conv("feature_net.stem", v, 1)
    for i in range(6):
        block = f"feature_net.blocks.{i}"
        y = conv(f"{block}.second.conv", F.elu(conv(f"{block}.first.conv", F.elu(x), 1)), 1)
        shrinks = i % 2 == 0
        kept = conv(f"{block}.shortcut.conv", F.avg_pool2d(x, 2), 0) if shrinks else x
        x = kept + (F.avg_pool2d(y, 2) if shrinks else y)
    f = F.elu(x).flatten(1) @ theta["feature_net.out.linear.weight"].T + theta["feature_net.out.linear.bias"]
    coupled = torch.cat([f + h, h], -1)
    return F.elu(coupled @ theta["head_net.linear.weight"].T + theta["head_net.linear.bias"]).square().sum(-1)


def net(phi: dict, v: Tensor) -> tuple[Tensor, Tensor]:
    x = F.elu(F.conv2d(v, phi["net.0.weight"], phi["net.0.bias"], stride=4, padding=2))
    x = F.elu(F.conv2d(x, phi["net.2.weight"], phi["net.2.bias"], stride=2, padding=1))
    mean, log_std = F.conv2d(x, phi["net.4.weight"], phi["net.4.bias"]).flatten(1).chunk(2, -1)
    return mean, log_std


def log_q(phi: dict, v: Tensor, h: Tensor) -> Tensor:
    mean, log_std = net(phi, v)
    return torch.distributions.Normal(mean, log_std.exp()).log_prob(h).sum(-1)


def sample(phi: dict, v: Tensor, noise: Tensor) -> Tensor:
    mean, log_std = net(phi, v)
    return mean + log_std.exp() * noise


def lower(kind: str, divergence: str, theta: dict, phi: dict, v: Tensor, noise: Tensor) -> Tensor:
    h = sample(phi, v, noise)
    if divergence == "kl":
        return log_q(phi, v, h) + plain_energy(kind, theta, v, h)
    mean, log_std = net(phi, v)
    (slope,) = torch.autograd.grad(plain_energy(kind, theta, v, h).sum(), h, create_graph=True)
    return 0.5 * (slope - (h - mean) / log_std.exp() ** 2).square().sum(-1)


def bilevel(divergence: str, K: int, N: int, sgd: bool, memory: str, shared: bool) -> ScoreMatching:
    unroll_lr = UNROLL_LR if sgd else None
    bism = bism_of(
        K, N, lower_level.DIVERGENCES[divergence], shared=shared, sgd=sgd, unroll_lr=unroll_lr, memory=memory
    )
    return ScoreMatching(bism, LOSS)


def start(method: ScoreMatching, energy: Energy, unroll_lr: float) -> Started:
    nets = Nets(energy, ConvGaussian(SHAPE, H, 3), phi_optimizer=ADAM)
    v = philox.uniform(Key(3, 0), 0, B, SHAPE, dtype=torch.float64)
    state = cast(method.init(nets, Key(5, 0), v, ADAM))
    state = state._replace(phi=under_way(state.phi, 3.0, m=0.01, v=0.02))
    return Started(method, nets, state, v, drawn(method, nets, Key(11, 4), v), rates_of(LR, unroll=unroll_lr))


def compare(
    kind: str = "deep",
    divergence: str = "fisher",
    K: int = 1,
    N: int = 2,
    sgd: bool = False,
    memory: str = "store",
    checkpoint: str = "none",
    shared: bool = True,
    compiled: bool = False,
) -> None:
    method = bilevel(divergence, K, N, sgd, memory, shared)
    _, nets, state, v, noise, rates = start(method, energy_of(kind, checkpoint), UNROLL_LR if sgd else LR)
    run = method.gradient(nets)
    if compiled:
        run = torch.compile(run, dynamic=False, backend="aot_eager")
    with torch.no_grad():
        gradient, moved, _ = run(state, v, noise, rates)

    sigma = 0.1 * 10 ** noise["level"]
    wide = sigma.view(-1, 1, 1, 1)
    batches = [v + wide * eps for eps in noise["perturb"]]
    batches = batches * (K + N + 1) if shared else batches

    def upper(score_fn, x: Tensor) -> Tensor:
        s = score_fn(x.detach().requires_grad_())
        return 0.5 * ((s / wide + noise["perturb"][-1] / 0.01) ** 2).flatten(1).sum(-1).mean()

    model = brute_force.Model(partial(plain_energy, kind), log_q, sample, partial(lower, kind, divergence))
    expected, phi = brute_force.double_loop(
        model, state.theta.params, state.phi.params, (state.phi.moments.m, state.phi.moments.v, 3), batches,
        [n[:, 0] for n in noise["latent"]], upper, 1 / sigma,
        K=K, N=N, lr=LR, unroll_lr=UNROLL_LR, sgd=sgd, betas=BETAS,
    )  # fmt: skip
    assert set(expected) == set(gradient)
    for name, value in expected.items():
        assert (gradient[name] - value).abs().max() <= TOLERANCE * value.abs().max(), name
    assert (
        sum(float(value.abs().max()) > 0 for value in expected.values()) >= len(expected) - 1
    )  # all, but an outer bias
    for name, value in phi.items():
        torch.testing.assert_close(moved.phi.params[name], value, rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("N", range(4))
@pytest.mark.parametrize("K", range(3))
@pytest.mark.parametrize("divergence", ["fisher", "kl"])
@pytest.mark.parametrize("sgd", [False, True], ids=["adam", "sgd"])
def test_one_pass_gradient(sgd: bool, divergence: str, K: int, N: int) -> None:
    compare(divergence=divergence, K=K, N=N, sgd=sgd)


@pytest.mark.parametrize("checkpoint", ["none", "blocks", "all"])
@pytest.mark.parametrize("memory", ["store", "recompute"])
@pytest.mark.parametrize("divergence", ["fisher", "kl"])
@pytest.mark.parametrize("sgd", [False, True], ids=["adam", "sgd"])
def test_memory_modes(sgd: bool, divergence: str, memory: str, checkpoint: str) -> None:
    compare(divergence=divergence, sgd=sgd, memory=memory, checkpoint=checkpoint)


@pytest.mark.parametrize(("divergence", "sgd"), [("fisher", False), pytest.param("kl", True, marks=pytest.mark.long)])
def test_compiled_step(divergence: str, sgd: bool) -> None:
    """The compiler traces the same derivatives (its own kernels are not asked here: they take minutes to build)."""
    compare(divergence=divergence, sgd=sgd, compiled=True)


@pytest.mark.parametrize("checkpoint", ["none", "blocks"])
def test_fresh_noise(checkpoint: str) -> None:
    compare(shared=False, checkpoint=checkpoint)


@pytest.mark.parametrize("divergence", ["fisher", "kl"])
@pytest.mark.parametrize("memory", ["store", "recompute"])
@pytest.mark.parametrize("N", [0, 2])
def test_an_energy_without_structure(N: int, memory: str, divergence: str) -> None:
    compare("unstructured", divergence, N=N, memory=memory)
