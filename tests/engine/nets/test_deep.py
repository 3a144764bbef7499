"""The deep models: shapes, parameter counts, memory order, precision, compile, and errors for sizes that do not fit."""

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from eblvm.engine.config import Config
from eblvm.engine.errors import UserError
from eblvm.engine.nets.base import Energy, Separable
from eblvm.engine.nets.deep import Layer, ResNet
from eblvm.engine.nets.posteriors import ConvGaussian, Gaussian, check_fit
from eblvm.engine.optim.replicas import pick
from eblvm.engine.recipes import recipe
from eblvm.engine.training.step import moved, vectorised
from eblvm.kernels import philox
from eblvm.kernels.philox import Key
from tests.engine.methods.started import drawn, first_step

TINY = {"width": 2, "depth": 12, "latent": 3, "head_width": 5, "posterior_width": 2, "batch": 6}


def energy_for(config: Config, shape: tuple[int, ...]) -> Energy:
    return config.model.energy(shape, config.method.learns_q)


def step(**changes) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Return (gradient, info) of one step of a tiny model with its initial weights."""
    config = recipe("cifar10").replaced(**{**TINY, "N": 2, "K": 2, **changes})
    method, nets, state, v, _, rates = first_step(config, philox.uniform(Key(1, 0), 0, config["batch"], (3, 16, 16)))
    run = method.gradient(nets)
    if config.step.compile:
        run = torch.compile(run, dynamic=False, backend="aot_eager")
    with torch.no_grad():
        gradient, _, info = run(state, v, drawn(method, nets, Key(2, 0), v), rates)
    return gradient, info


@pytest.mark.parametrize(("depth", "count"), [(12, 12), (18, 18), (24, 24)])
def test_depth_counts_the_3x3_convolutions(depth: int, count: int) -> None:
    net = ResNet((3, 32, 32), 50, 4, depth)
    assert sum(isinstance(m, Layer) for m in net.modules()) == count
    assert net(torch.empty(2, 3, 32, 32, device="meta")).shape == (2, 50)
    assert [b.second.conv.out_channels for b in net.blocks][:: depth // 6] == [8, 16, 32]


def test_pooling_convolution_equals_convolution_then_pooling() -> None:
    layer = Layer(3, 5, F.elu, pool=True)
    parameters = {"conv.weight": torch.randn(5, 3, 3, 3), "conv.bias": torch.randn(5)}
    x = torch.randn(2, 3, 8, 8)
    expected = F.avg_pool2d(F.conv2d(F.elu(x), *parameters.values(), padding=1), 2)
    torch.testing.assert_close(torch.func.functional_call(layer, parameters, (x,)), expected, rtol=1e-5, atol=1e-5)


def test_methods_choose_the_energy() -> None:
    config = recipe("cifar10").replaced(**TINY)
    v, h = torch.rand(4, 3, 16, 16), torch.randn(2, 4, 3)
    for method, visible in (("bimdsm", False), ("mdsm", True)):
        energy = energy_for(config.replaced(method=method), (3, 16, 16))
        theta = energy.initial(Key(0, 0))
        assert hasattr(energy, "free_energy") == visible
        if visible:
            assert energy.at(theta).free_energy(v).shape == (4,)
        else:
            assert energy.at(theta).energy(v, h).shape == (2, 4)


def test_gaussian_posterior_is_normal() -> None:
    posterior = ConvGaussian((1, 8, 8), 3, 2)
    p = posterior.at(posterior.initial(Key(0, 0))).params(torch.rand(5, 1, 8, 8))
    h = posterior.rsample(p, torch.randn(4, 5, 3))
    expected = torch.distributions.Normal(p[0], p[1].exp()).log_prob(h) + 0.5 * torch.log(torch.tensor(2 * torch.pi))
    torch.testing.assert_close(posterior.log_prob(p, h), expected.sum(-1))
    assert torch.equal(posterior.mean(p), p[0])


def test_channels_last_gives_the_same_gradient() -> None:
    plain, _ = step()
    other, _ = step(channels_last=True)
    for name, g in plain.items():
        torch.testing.assert_close(other[name], g, rtol=1e-3, atol=1e-4 * float(g.abs().max()) + 1e-6)


@pytest.mark.parametrize("checkpoint", ["none", "blocks"])
def test_bf16_is_near_fp32(checkpoint: str) -> None:
    """Allow bf16, which has 8 bits, a relative error of 2^-8 per operation: some percent of the whole gradient."""
    exact, exact_info = step()
    rounded, info = step(precision="bf16", checkpoint=checkpoint)
    assert all(g.dtype == torch.float32 for g in rounded.values())
    whole, near = (torch.cat([g[name].flatten() for name in exact]) for g in (exact, rounded))
    assert 0 < (near - whole).norm() < 0.05 * whole.norm()
    assert info["loss"].dtype == torch.float32
    torch.testing.assert_close(info["loss"], exact_info["loss"], rtol=0.02, atol=0)


def test_compiled_gives_the_same_gradient() -> None:
    plain, _ = step()
    compiled, _ = step(compile=True)
    for name, g in plain.items():
        torch.testing.assert_close(compiled[name], g, rtol=1e-3, atol=1e-4 * float(g.abs().max()) + 1e-6)


def test_replicas_equal_single_steps() -> None:
    config = recipe("cifar10").replaced(**TINY, N=1, K=1, replicas=2)
    v = philox.uniform(Key(torch.tensor([0, 1]), 0), 0, 6, (3, 16, 16))
    begun, adam = first_step(config, v), config.optimisation.theta_optimizer()
    gradient = begun.method.gradient(begun.nets)
    together, _ = moved(vectorised(gradient), begun.nets, adam, in_place=False)(*begun.given)
    for r in range(2):
        alone, _ = moved(gradient, begun.nets, adam, in_place=False)(*pick(begun.given, r))
        for name, p in alone.theta.params.items():
            torch.testing.assert_close(together.theta.params[name][r], p, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("shape", [(3, 28, 28), (3, 32, 20)])
def test_sizes_must_be_divisible_by_8(shape: tuple[int, int, int]) -> None:
    with pytest.raises(UserError, match="expected sizes divisible by 8"):
        energy_for(recipe("cifar10"), shape)


def test_features_must_fit_h() -> None:
    class Head(nn.Module):
        def forward(self, f: Tensor, h: Tensor) -> Tensor:
            return (f + h).square().sum(-1)

    class Summed(nn.Module):
        def forward(self, f: Tensor, h: Tensor) -> Tensor:
            return (f + h).square().sum()

    posterior = Gaussian(nn.Linear(7, 6), 3)
    check_fit(Separable(nn.Linear(7, 3), Head()), posterior, (7,))
    with pytest.raises(UserError, match=r"features \[\[2, 4\]\] do not fit h \[2, 3\]"):
        check_fit(Separable(nn.Linear(7, 4), Head()), posterior, (7,))
    with pytest.raises(UserError, match=r"energy of 2 samples has shape \[\], expected \[2\]"):
        check_fit(Separable(nn.Linear(7, 3), Summed()), posterior, (7,))
    with pytest.raises(UserError, match=r"mean of 2 samples has shape \[2, 3\], expected \[2, 5\]"):
        check_fit(Separable(nn.Linear(7, 3), Head()), Gaussian(nn.Linear(7, 6), 5), (7,))


def test_posterior_for_conv_fits_its_energy() -> None:
    config = recipe("celeba64").replaced(**TINY)
    posterior = config.method.estimator.posterior.build((3, 64, 64), config.model)
    check_fit(energy_for(config, (3, 64, 64)), posterior, (3, 64, 64))
